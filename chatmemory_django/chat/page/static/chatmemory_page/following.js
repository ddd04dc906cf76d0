// An answer in progress, read to its end over a connection that comes and goes: the site generates it all the same.

import {Refused, resume} from "./api.js";
import {text} from "./dom.js";
import {Answer, chunks} from "./stream.js";

const TRIES = 30;
const LONGEST_PAUSE = 8_000; // milliseconds between two of them

/**
 * Read an answer in conversation *id* from *response* on, and return it; null if the site has stored what there is of it.
 *
 * *onChange* is called with the answer at its start, and with each chunk; *onLost* with whether the connection is lost.
 */
export async function follow(response, id, signal, {onChange, onLost}) {
    for (let tries = 1; response; tries += 1) {
        const answer = new Answer();
        onChange(answer);
        try {
            for await (const chunk of chunks(response)) {
                answer.add(chunk);
                onChange(answer, chunk);
            }
            if (answer.state !== "begun") return answer;
        } catch (error) {
            if (signal.aborted) throw error;
        }
        if (tries === TRIES) throw new Refused(text("offline"));
        onLost(true);
        response = await again(id, signal);
        onLost(false);
    }
    return null;
}

/** Return the stream of the answer as soon as the site can be reached; null if the answer has ended. */
async function again(id, signal) {
    for (let tries = 1; ; tries += 1) {
        await pause(Math.min(LONGEST_PAUSE, 125 * 2 ** tries));
        signal.throwIfAborted();
        try {
            return await resume(id, signal);
        } catch (error) {
            if (!(error instanceof Refused && error.isOutage) || tries === TRIES) throw error;
        }
    }
}

/** Wait for some time, or until the browser is online again. */
function pause(milliseconds) {
    return new Promise(resolve => {
        setTimeout(resolve, milliseconds);
        addEventListener("online", resolve, {once: true});
    });
}
