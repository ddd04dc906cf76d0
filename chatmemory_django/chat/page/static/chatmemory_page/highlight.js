// Colors for code: comments, strings, numbers and keywords, by one pattern for a family of languages.
//
// It takes time in proportion to the code: what is open at its end goes on to there, so nothing is looked for twice.

import {element} from "./dom.js";

const LONGEST = 50_000; // characters; longer code has no colors

const HASH = /#[^\n]*/;
const BLOCK = /\/\*[^]*?(?:\*\/|$)/;
const SLASHES = new RegExp(`//[^\\n]*|${BLOCK.source}`);
const DASHES = /--[^\n]*/;
const TAGS = /<!--[^]*?(?:-->|$)/;

const DOUBLE = /"(?:[^"\\\n]|\\[^])*"?/;
const QUOTED = new RegExp(`${DOUBLE.source}|'(?:[^'\\\\\\n]|\\\\[^])*'?`);
const PYTHON = new RegExp(`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${QUOTED.source}`);
const SCRIPT = new RegExp(`\`(?:[^\`\\\\]|\\\\[^])*\`?|${QUOTED.source}`);

const NUMBER = /\b(?:0[xX][\da-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\b/;

const FAMILIES = [
    ["python py", HASH, PYTHON, `and as assert async await break case class continue def del elif else except False finally for from
        global if import in is lambda match None nonlocal not or pass raise return True try while with yield self`],
    ["javascript js jsx mjs typescript ts tsx", SLASHES, SCRIPT, `as async await break case catch class const continue default delete do
        else enum export extends false finally for from function get if implements import in instanceof interface let new null of
        private protected public readonly return set static super switch this throw true try type typeof undefined var void while yield`],
    ["c h cpp c++ cs csharp java kotlin kt scala dart php", SLASHES, QUOTED, `abstract auto bool boolean break byte case catch char class const
        continue default do double echo else enum extends false final finally float for foreach fun function goto if implements import int
        interface long namespace new null object override package private protected public return short signed static string struct super
        switch this throw true try typedef union unsigned using val var virtual void volatile when while`],
    ["go golang", SLASHES, SCRIPT, `break case chan const continue default defer else fallthrough false for func go goto if import interface
        map nil package range return select struct switch true type var`],
    ["rust rs swift", SLASHES, DOUBLE, `as async await break case class const continue default do else enum extension extern false fn for func
        guard if impl import in init let loop match mod move mut nil none pub ref return self Self some static struct super switch throw
        throws trait true try type unsafe use var where while`],
    ["sql mysql postgresql sqlite", new RegExp(`${DASHES.source}|${BLOCK.source}`), QUOTED, `add all alter and as asc begin between by case commit
        constraint create delete desc distinct drop else end exists foreign from full group having in index inner insert into is join
        key left like limit not null on or order outer primary references returning right rollback select set table then union unique
        update values view when where with`],
    ["bash sh shell zsh console", HASH, QUOTED, "case do done elif else esac export fi for function if in local return set then until while"],
    ["ruby rb perl pl r", HASH, QUOTED, `and begin break case class def do else elsif end ensure false for function if in last module my next
        nil not NULL or require rescue return self sub TRUE FALSE then true unless until use while yield`],
    ["yaml yml toml ini conf dockerfile makefile make", HASH, QUOTED, `true false null yes no on off FROM RUN COPY ADD CMD ENTRYPOINT ENV ARG
        WORKDIR`],
    ["json jsonc json5", SLASHES, DOUBLE, "true false null"],
    ["css scss less", BLOCK, QUOTED, "important"],
    ["html xml svg vue django jinja", TAGS, QUOTED, ""],
    ["lua haskell hs ada", DASHES, QUOTED, `and break case class data do else elseif end false for function if import in instance let local
        module nil not of or repeat return then true type until where while`],
];
const LANGUAGES = new Map(FAMILIES.flatMap(([names, comment, string, words]) => {
    const parts = [comment, string, NUMBER, /[A-Za-z_]\w*/].map(each => `(${each.source})`);
    const family = {pattern: new RegExp(parts.join("|"), "g"), words: new Set(words.split(/\s+/)), ignoresCase: names.startsWith("sql")};
    return names.split(" ").map(name => [name, family]);
}));

/** Return *code* with its comments, strings, numbers and keywords marked; as it is, if *language* is not known. */
export function highlighted(code, language) {
    const made = document.createDocumentFragment();
    const family = code.length <= LONGEST && LANGUAGES.get(language.toLowerCase());
    let end = 0;
    for (const match of family ? code.matchAll(family.pattern) : []) {
        const [whole, comment, string, digits, word] = match;
        const isKeyword = word && family.words.has(family.ignoresCase ? word.toLowerCase() : word);
        const kind = comment ? "comment" : string ? "string" : digits ? "number" : isKeyword ? "keyword" : null;
        if (!kind) continue;
        made.append(code.slice(end, match.index), element("span", {class: kind}, whole));
        end = match.index + whole.length;
    }
    made.append(code.slice(end));
    return made;
}
