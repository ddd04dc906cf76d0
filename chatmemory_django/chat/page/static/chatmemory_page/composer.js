// The message field: a text, and files that are attached or pasted.

import {element, icon, number, text} from "./dom.js";
import {shownFile, toPart} from "./files.js";
import {root} from "./root.js";

export class Composer {
    #files = [];

    /**
     * *onSend* is called with the parts of a message, *onType* with each text in the field, *onWait* if a message cannot
     * be sent yet; *onStop* stops the answer in progress.
     */
    constructor(form, {onSend, onType, onStop, onWait, onProblem}) {
        this.form = form;
        this.field = form.querySelector("textarea");
        this.tray = form.querySelector("[data-part=files]");
        this.send = form.querySelector("[data-part=send]");
        this.stop = form.querySelector("[data-part=stop]");
        Object.assign(this, {onSend, onType, onWait, onProblem});
        const picker = form.querySelector("input[type=file]");
        this.accepted = picker.accept;
        this.longest = Number(this.field.dataset.longest);
        form.addEventListener("submit", event => {
            event.preventDefault();
            this.#submit();
        });
        this.field.addEventListener("input", () => onType(this.field.value));
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
        const hadFocus = this.form.contains(root.activeElement) && root.activeElement !== this.field;
        [this.send.hidden, this.stop.hidden] = [isBusy, !isBusy];
        this.isBusy = isBusy;
        if (hadFocus) this.field.focus();
    }

    /** Show *words* in place of what is in the field: the draft of another conversation. */
    setText(words) {
        this.field.value = words;
        this.#files = [];
        this.#showFiles();
    }

    /** Take the parts of a message back, in front of what was written since. */
    takeBack(parts) {
        const words = [...parts.filter(part => part.kind === "text").map(part => part.text), this.field.value];
        this.field.value = words.filter(Boolean).join("\n\n");
        this.#files.unshift(...parts.filter(part => part.kind === "file"));
        this.#showFiles();
        this.onType(this.field.value);
        this.field.focus();
    }

    async attach(files) {
        for (const file of files) {
            try {
                this.#files.push(await toPart(file, this.accepted));
            } catch {
                this.onProblem(text("not_a_file", {name: file.name}));
            }
        }
        this.#showFiles();
        this.field.focus();
    }

    #submit() {
        const typed = this.field.value;
        if (!typed.trim() && !this.#files.length) return;
        if (this.isBusy) return this.onWait();
        const length = [...typed].length; // in characters, as the site counts
        if (length > this.longest) {
            return this.onProblem(text("too_long", {length: number(length), longest: number(this.longest)}));
        }
        const parts = [...(typed.trim() ? [{kind: "text", text: typed}] : []), ...this.#files];
        this.setText("");
        this.onType("");
        return this.onSend(parts);
    }

    #showFiles() {
        this.tray.replaceChildren(...this.#files.map((file, index) => {
            const remove = () => {
                this.#files.splice(index, 1);
                this.#showFiles();
                this.field.focus();
            };
            const label = text("remove_file", {number: index + 1});
            return element("span", {}, shownFile(file), element("button", {type: "button", "aria-label": label, title: label, onclick: remove}, icon("cross")));
        }));
        this.tray.hidden = !this.#files.length;
    }
}
