// The form to edit a message in its place.

import {element, text} from "./dom.js";

/** Show the form with *words* in *item*. *onSave* is called with the new text, unless *isBusy* returns true. */
export function editInPlace(item, words, {isBusy, onSave}) {
    const field = element("textarea", {"aria-label": text("edit_label"), rows: 3, dir: "auto"});
    field.value = words;
    const end = () => {
        form.remove();
        item.classList.remove("editing");
        item.querySelector("[data-edit]")?.focus();
    };
    const submit = event => {
        event?.preventDefault();
        if (!field.value.trim() || isBusy()) return;
        end();
        onSave(field.value);
    };
    const form = element(
        "form", {class: "edit", onsubmit: submit}, field,
        element("div", {}, element("button", {type: "button", onclick: end}, text("cancel")), element("button", {class: "main"}, text("save"))),
    );
    field.addEventListener("keydown", event => {
        if (event.key === "Escape") end();
        else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
    });
    item.classList.add("editing");
    item.querySelector(".bubble").after(form);
    field.focus();
}
