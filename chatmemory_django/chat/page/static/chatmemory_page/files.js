// Files in messages: as the chat takes them, and how they are shown.

import {element, icon, number, text} from "./dom.js";

const TEXT = /^(text\/|application\/json)/;
const LARGE = 1_000_000; // bytes; larger images are scaled down
const LONGEST_SIDE = 1600; // pixels, after scaling down

/** Why a file is not attached, in a sentence. */
export class Unfit extends Error {}

/**
 * Return the message part for *file*; throw an error if the chat does not take it. A text has at most *longest* characters.
 *
 * An image has a *picture* to show until the site serves it: on a canvas, since the page's policy only allows images of
 * the site.
 */
export async function toPart(file, accepted, longest) {
    if (file.type.startsWith("image/")) return toImage(file);
    const kinds = accepted.split(",");
    const [types, endings] = [kinds.filter(kind => kind[0] !== "."), kinds.filter(kind => kind[0] === ".")];
    const isAccepted = types.some(type => file.type.startsWith(type.replace("*", "")));
    const isText = isAccepted ? TEXT.test(file.type) : endings.some(ending => file.name.toLowerCase().endsWith(ending));
    if (!(isAccepted || isText) || !file.size) throw new Error("not accepted");
    if (isText) return toText(file, isAccepted ? file.type : "text/plain", longest);
    return {kind: "file", mediaType: file.type, url: await toDataUrl(file), name: file.name};
}

/** Return the part for a file of text, of which models are sent the text: what programs are written in has no type of its own. */
async function toText(file, mediaType, longest) {
    if (file.size > 4 * longest) throw new Unfit(text("text_too_large", {name: file.name, longest: number(longest)}));
    const length = [...await decoded(file)].length;
    if (length > longest) throw new Unfit(text("text_too_large", {name: file.name, longest: number(longest)}));
    return {kind: "file", mediaType, url: await toDataUrl(new Blob([file], {type: mediaType})), name: file.name};
}

async function decoded(file) {
    try {
        return new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
    } catch {
        throw new Unfit(text("not_utf8", {name: file.name}));
    }
}

async function toImage(file) {
    const bitmap = await createImageBitmap(file);
    const scale = file.size > LARGE ? Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height)) : 1;
    const picture = element("canvas", {role: "img", "aria-label": file.name || text("image")});
    [picture.width, picture.height] = [Math.round(bitmap.width * scale), Math.round(bitmap.height * scale)];
    picture.getContext("2d").drawImage(bitmap, 0, 0, picture.width, picture.height);
    const isKnown = /^image\/(png|jpeg|gif|webp)$/.test(file.type) && file.size <= LARGE;
    const content = isKnown ? file : await new Promise(resolve => { picture.toBlob(resolve, "image/jpeg", 0.85); });
    return {kind: "file", mediaType: content.type, url: await toDataUrl(content), name: file.name, picture};
}

/** Return a file of this site with its content, since the model's server cannot fetch it. */
export async function withContent(part) {
    if (new URL(part.url).origin !== location.origin) return part;
    const blob = await (await fetch(part.url)).blob();
    return {kind: "file", mediaType: blob.type, url: await toDataUrl(blob), name: part.name};
}

function toDataUrl(blob) {
    return new Promise((resolve, reject) => {
        const reader = new FileReader();
        reader.onload = () => resolve(reader.result);
        reader.onerror = () => reject(reader.error);
        reader.readAsDataURL(blob);
    });
}

/** Return an image of this site, or one just attached; other files are links, so other sites cannot track users. */
export function shownFile(part) {
    if (part.picture) return part.picture;
    const url = URL.parse?.(part.url) ?? (URL.canParse(part.url) ? new URL(part.url) : null);
    const isOwn = url?.origin === location.origin;
    if (part.mediaType?.startsWith("image/") && isOwn) {
        return element("a", {href: part.url, target: "_blank"}, element("img", {src: part.url, alt: part.name || text("image")}));
    }
    const name = [icon("file"), part.name || (isOwn || url?.protocol === "data:" ? kindOf(part.mediaType) : part.url)];
    if (!/^https?:$/.test(url?.protocol)) return element("span", {class: "named"}, ...name);
    return element("a", {class: "named", href: part.url, target: "_blank", rel: "noopener noreferrer"}, ...name);
}

/** Return what people call a file of this type: "PDF" or "Audio". */
export function kindOf(mediaType = "") {
    const [kind, format = ""] = mediaType.split("/");
    if (kind === "image") return text("image");
    if (kind === "audio") return text("audio");
    if (kind === "video") return text("video");
    return format ? format.toUpperCase() : text("file");
}
