// As chatmemory_django.core.shown: what is dangerous when it is pasted, or changes the direction of what follows.
const UNSEEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]/gu;

/** Return *words* with the names of invisible characters in their place: "⟦U+202E⟧". */
export function visible(words) {
    const name = found => `⟦U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟧`;
    return words.replace(/\r\n/g, "\n").replace(UNSEEN, name);
}
