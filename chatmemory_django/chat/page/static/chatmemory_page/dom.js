// Creation of elements and lookup of the page's texts: nothing is ever parsed as HTML.

import {at, site} from "./root.js";

/** Return the text with that name, formatted with *values*; the name itself if the page has no such text. */
export function text(name, values = {}) {
    return (site.texts[name] ?? name).replace(/\{(\w+)\}/g, (_, key) => values[key]);
}

/** Return a new element. Attributes that are null or false are left out; those that begin with "on" are listeners. */
export function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
        if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
        else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter(child => child !== null && child !== undefined));
    return made;
}

/** Return one of the icons at the end of the chat. */
export function icon(name) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
    svg.setAttribute("class", "icon");
    svg.setAttribute("aria-hidden", "true");
    use.setAttribute("href", `#icon-${name}`);
    svg.append(use);
    return svg;
}

/** Return a button with an icon, and a name for screen readers. */
export function iconButton(name, label, onclick, attributes = {}) {
    return element("button", {type: "button", class: "quiet", "aria-label": label, title: label, onclick, ...attributes}, icon(name));
}

const MOMENT = new Intl.DateTimeFormat(site.language, {dateStyle: "medium", timeStyle: "short"});
const MONTH = new Intl.DateTimeFormat(site.language, {month: "long", year: "numeric"});
const NUMBER = new Intl.NumberFormat(site.language);
const DAY = 86_400_000; // milliseconds

/** Return the date and the time of a moment. */
export function moment(written) {
    return MOMENT.format(new Date(written));
}

/** Return "Today", "Yesterday", "Previous 7 days" or the month of a moment. */
export function period(written) {
    const date = new Date(written);
    const days = Math.round((new Date().setHours(0, 0, 0, 0) - new Date(date).setHours(0, 0, 0, 0)) / DAY);
    if (days <= 0) return text("today");
    if (days === 1) return text("yesterday");
    return days <= 7 ? text("week") : MONTH.format(date);
}

export function number(value) {
    return NUMBER.format(value);
}

/** Have screen readers read *words*, after earlier announcements. */
export function announce(words) {
    const log = at("announcements");
    log.append(element("p", {}, words));
    while (log.childElementCount > 30) log.firstElementChild.remove();
}
