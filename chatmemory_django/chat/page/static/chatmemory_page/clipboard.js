// Copying of answers and of blocks of code.

import {announce, element, icon, iconButton, text} from "./dom.js";
import {root} from "./root.js";

const SHOWN = 2_000; // milliseconds for which the button shows that it has copied

/** Return a button that copies what *source* returns. */
export function copyButton(label, source, attributes = {}) {
    return iconButton("copy", label, async event => {
        const button = event.currentTarget;
        await copy(source());
        announce(text("copied"));
        button.replaceChildren(icon("check"));
        setTimeout(() => button.replaceChildren(icon("copy")), SHOWN);
    }, attributes);
}

async function copy(words) {
    if (navigator.clipboard) return navigator.clipboard.writeText(words);
    // Without HTTPS, browsers have no clipboard but this.
    const field = element("textarea", {class: "unseen"});
    field.value = words;
    root.append(field);
    field.select();
    document.execCommand("copy");
    return field.remove();
}

/** Put a head with its language and a button above a block of code. */
export function withCopyButton(block) {
    const language = element("span", {}, block.dataset.language ?? text("code"));
    const head = element("div", {class: "head"}, language, copyButton(text("copy_code"), () => block.textContent));
    const box = element("div", {class: "code", dir: "ltr"}, head);
    block.replaceWith(box);
    box.append(block);
}
