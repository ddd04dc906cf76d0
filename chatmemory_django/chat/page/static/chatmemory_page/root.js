// Where the chat is in the page around it, and what the site gives it: see chatmemory_django.chat.page.context.

export const host = document.querySelector("chat-memory");
// A browser has made the root from the page's HTML, but not from HTML that a script has put into the page.
if (!host.shadowRoot) host.attachShadow({mode: "open"}).append(host.querySelector("template").content);

/** Everything of the chat: styles and ids of the page around it have no effect inside, and the chat's none outside. */
export const root = host.shadowRoot;

/** Return the element with this id. */
export const at = id => root.getElementById(id);

/** What the site gives: texts, addresses, the user, the choices, and whether the chat is a page of its own. */
export const site = JSON.parse(at("site").textContent);
