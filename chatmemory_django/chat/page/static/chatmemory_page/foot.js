// The line below a message: its status, its versions, and what can be done with it.

import {copyButton} from "./clipboard.js";
import {element, icon, iconButton, number, text} from "./dom.js";
import {textOf, waits} from "./messages.js";

const REJECTED = {too_long: "rejected_length", content_filter: "rejected_content", file: "rejected_file", invalid: "rejected_other"};

/** Return the foot of *message*. *does* has the actions of its buttons, *onEdit* begins an edit. */
export function foot(message, isLast, does, onEdit) {
    const made = element("div", {class: "foot"}, element("span", {class: "fate"}));
    for (const place of message.places) made.append(versions(place, does));
    if (textOf(message) && message.role !== "system") {
        made.append(copyButton(text(message.role === "user" ? "copy_message" : "copy_answer"), () => textOf(message)));
    }
    if (does.pin && (message.role === "user" || message.written) && !waits(message)) made.append(...pin(message, does));
    if (message.role === "user") {
        made.append(iconButton("edit", text("edit"), onEdit, {"data-acts": "", "data-edit": ""}));
        if (message.metadata.rejected) made.append(rejected(message, isLast, does));
        else if (isLast) made.append(unanswered("unanswered", () => does.retry(message)));
    } else if (message.role === "assistant") {
        const isWaiting = waits(message); // there is nothing to rate, or to replace, before it has ended
        const again = () => iconButton("again", text("regenerate"), () => does.regenerate(message), {"data-acts": ""});
        if (message.author === null && !isWaiting) made.append(again());
        if (message.written && !isWaiting) made.append(rating(message, 5, does), rating(message, 1, does));
        const {partial, isCut, model, input, output, shortened} = message.metadata;
        if (isLast && !message.hasEnded && !isWaiting) made.append(unanswered("unended", () => does.regenerate(message)));
        if (shortened) made.append(element("span", {class: "note"}, text("shortened", {results: shares(shortened)})));
        if (isCut) made.append(element("span", {class: "note"}, text("cut")));
        if (partial) made.append(element("span", {class: "note"}, text("partial")));
        if (model && input !== undefined) {
            const usage = {model, input: number(input), output: number(output ?? 0)};
            made.append(element("span", {class: "note usage"}, text("usage", usage)));
        }
    }
    return made;
}

/** Return the foot of a message that could not be sent. */
export function unsentFoot({sendAgain, takeBack}) {
    const button = (words, onclick) => element("button", {type: "button", "data-acts": "", onclick}, text(words));
    const words = element("span", {class: "unanswered"}, text("unsent"), " ", button("retry", sendAgain), " ", button("take_back", takeBack));
    return element("div", {class: "foot"}, words);
}

/** Return that a question, or the rest of an answer, has no answer (*words*), with a button to try again. */
function unanswered(words, onclick) {
    const retry = element("button", {type: "button", "data-acts": "", onclick}, text("retry"));
    return element("span", {class: "unanswered"}, text(words), " ", retry);
}

/** Return why the model did not accept a question, with a button that sends it without its files. */
function rejected(message, isLast, does) {
    const hasMore = message.parts.some(part => part.kind === "file") && textOf(message);
    const without = isLast && hasMore && element("button", {type: "button", "data-acts": "", onclick: () => does.sendWithoutFiles(message)}, text("without_files"));
    return element("span", {class: "rejected"}, text(REJECTED[message.metadata.rejected] ?? "rejected_other"), " ", without || null);
}

/** Return how much of each result the model was sent. */
function shares(shortened) {
    return Object.values(shortened).map(([used, limit]) => text("tokens", {used: number(used), limit: number(limit)})).join(", ");
}

/** Return a button to rate an answer; pressed, it takes the rating back. */
function rating({written, metadata}, value, does) {
    const isChosen = metadata.rating === value;
    return iconButton(
        value === 5 ? "good" : "bad", text(value === 5 ? "good_answer" : "bad_answer"),
        () => does.rate(written, isChosen ? null : value), {"data-acts": "", "aria-pressed": String(isChosen)},
    );
}

/** Return a button that pins a message, or that it is pinned and a button that ends it. */
function pin({role, sequences, written, pinned}, does) {
    const name = pinned ? "unpin_message" : "pin_message";
    const sequence = pinned ?? (role === "user" ? sequences[0] : written);
    const button = iconButton("pin", text(name), () => does.pin(sequence, !pinned), {"data-acts": ""});
    return pinned ? [element("span", {class: "note pinned"}, icon("pin"), text("pinned")), button] : [button];
}

/** Return "2 of 3", with buttons for the other versions. */
function versions({sequence, number: place, of, previous, next}, does) {
    const way = (to, drawing, label) =>
        iconButton(drawing, text(label), () => does.switchTo(to), {"data-acts": "", disabled: to === null});
    const all = element(
        "button", {type: "button", class: "quiet", title: text("versions"), "data-acts": "", onclick: () => does.showVersions(sequence)},
        text("place", {number: place, of}),
    );
    return element(
        "span", {class: "place", role: "group", "aria-label": text("versions")},
        way(previous, "left", "previous_version"), all, way(next, "right", "next_version"),
    );
}
