// The message field: a text, and images that are attached or pasted.

import {element, icon, text} from "./dom.js";

const LARGE = 1_000_000; // bytes; larger images are scaled down
const LONGEST_SIDE = 1600; // pixels, after scaling down

export class Composer {
    #images = [];

    /** *onSend* is called with the parts of a message; *onStop* stops the answer in progress. */
    constructor(form, {onSend, onStop, onProblem}) {
        this.form = form;
        this.field = form.querySelector("textarea");
        this.tray = form.querySelector("[data-part=images]");
        this.send = form.querySelector("[data-part=send]");
        this.stop = form.querySelector("[data-part=stop]");
        this.onSend = onSend;
        this.onProblem = onProblem;
        const picker = form.querySelector("input[type=file]");
        form.addEventListener("submit", event => {
            event.preventDefault();
            this.#submit();
        });
        this.field.addEventListener("keydown", event => {
            if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
                event.preventDefault();
                this.#submit();
            }
        });
        this.field.addEventListener("paste", event => {
            const files = [...event.clipboardData.files];
            if (!files.length) return;
            event.preventDefault();
            this.attach(files);
        });
        form.querySelector("[data-part=attach]").addEventListener("click", () => picker.click());
        picker.addEventListener("change", () => {
            this.attach([...picker.files]);
            picker.value = "";
        });
        this.stop.addEventListener("click", onStop);
    }

    /** While an answer is in progress, show the button to stop it instead of the one to send. */
    setBusy(isBusy) {
        const hadFocus = this.form.contains(document.activeElement) && document.activeElement !== this.field;
        [this.send.hidden, this.stop.hidden] = [isBusy, !isBusy];
        this.isBusy = isBusy;
        if (hadFocus) this.field.focus();
    }

    async attach(files) {
        for (const file of files) {
            try {
                this.#images.push(await toImage(file));
            } catch {
                this.onProblem(text("not_an_image"));
            }
        }
        this.#showImages();
        this.field.focus();
    }

    #submit() {
        const typed = this.field.value;
        if (this.isBusy || (!typed.trim() && !this.#images.length)) return;
        const parts = [...(typed.trim() ? [{kind: "text", text: typed}] : []), ...this.#images];
        this.field.value = "";
        this.#images = [];
        this.#showImages();
        this.onSend(parts);
    }

    #showImages() {
        this.tray.replaceChildren(...this.#images.map((image, index) => {
            const remove = () => {
                this.#images.splice(index, 1);
                this.#showImages();
                this.field.focus();
            };
            const label = text("remove_image", {number: index + 1});
            return element("span", {}, image.picture, element("button", {type: "button", "aria-label": label, title: label, onclick: remove}, icon("cross")));
        }));
        this.tray.hidden = !this.#images.length;
    }
}

/**
 * Return the message part for *file*, with a *picture* to show until the site serves it: on a canvas, since the page's
 * policy only allows images of the site. Throws an error if the browser cannot read the image.
 */
async function toImage(file) {
    const bitmap = await createImageBitmap(file);
    const scale = file.size > LARGE ? Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height)) : 1;
    const picture = element("canvas", {role: "img", "aria-label": text("image")});
    [picture.width, picture.height] = [Math.round(bitmap.width * scale), Math.round(bitmap.height * scale)];
    picture.getContext("2d").drawImage(bitmap, 0, 0, picture.width, picture.height);
    const isKnown = /^image\/(png|jpeg|gif|webp)$/.test(file.type) && file.size <= LARGE;
    const content = isKnown ? file : await new Promise(resolve => { picture.toBlob(resolve, "image/jpeg", 0.85); });
    return {kind: "file", mediaType: content.type, url: await toDataUrl(content), picture};
}

/** Return a file of this site with its content, since the model's server cannot fetch it. */
export async function withContent(part) {
    if (new URL(part.url).origin !== location.origin) return part;
    const blob = await (await fetch(part.url)).blob();
    return {kind: "file", mediaType: blob.type, url: await toDataUrl(blob)};
}

function toDataUrl(blob) {
    return new Promise((resolve, reject) => {
        const reader = new FileReader();
        reader.onload = () => resolve(reader.result);
        reader.onerror = () => reject(reader.error);
        reader.readAsDataURL(blob);
    });
}
