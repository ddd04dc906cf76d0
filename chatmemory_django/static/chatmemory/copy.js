// Buttons that copy the content of a URL. Without this script they stay hidden, and the link next to them is used.
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
            // A promise, since browsers forbid copying if the click handler has awaited the response before.
            await navigator.clipboard.write([new ClipboardItem({"text/plain": textAt(button.dataset.copy)})]);
            button.textContent = button.dataset.done;
            setTimeout(() => { button.textContent = label; }, 3000);
        } catch {
            window.location = button.dataset.copy; // which shows an error message, or downloads the content
        }
    });
}
