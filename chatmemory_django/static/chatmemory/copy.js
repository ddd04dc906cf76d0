// Buttons that copy what is at an address. Without this script they stay hidden, and a link beside them leads there.
"use strict";

async function textAt(address) {
    const response = await fetch(address);
    if (!response.ok || response.redirected) throw new Error(address);
    return response.text();
}

for (const button of document.querySelectorAll("button[data-copy]")) {
    if (!window.isSecureContext || !window.ClipboardItem) break;
    const label = button.textContent;
    button.parentElement.hidden = false;
    button.addEventListener("click", async () => {
        try {
            // A promise, since browsers allow no copying once the answer to a click has been waited for.
            await navigator.clipboard.write([new ClipboardItem({"text/plain": textAt(button.dataset.copy)})]);
            button.textContent = button.dataset.done;
            setTimeout(() => { button.textContent = label; }, 3000);
        } catch {
            window.location = button.dataset.copy; // there a page says why, or it is downloaded
        }
    });
}
