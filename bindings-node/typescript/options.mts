// One rule for options that there are not.
import { invalid } from './errors.mjs';

/** Where options belong that were given elsewhere. */
const HOMES: [home: string, names: readonly string[]][] = [];

/** What takes these options. */
export function addHome(home: string, names: readonly string[]): void {
  HOMES.push([home, names]);
}

/** Refuses options that there are not, and says what was meant. `of` is what they were given to. */
export function checkNames(options: object, known: readonly string[], of: string): void {
  for (const name of Object.keys(options).filter((name) => !known.includes(name))) {
    const home = HOMES.find(([, others]) => others.includes(name));
    if (home !== undefined) {
      invalid(`${name} is an option of ${home[0]}: give it there`);
    }
    const meant = nearest(name, known);
    if (meant !== undefined) {
      invalid(`unknown option ${name} of ${of}; did you mean ${meant}?`);
    }
    for (const [home, others] of HOMES) {
      const meant = nearest(name, others);
      if (meant !== undefined) {
        invalid(`unknown option ${name} of ${of}; did you mean ${meant}, which is an option of ${home}?`);
      }
    }
    invalid(`unknown option ${name} of ${of}: docs/reference/options.md has all of them`);
  }
}

const plain = (text: string) => text.replaceAll('_', '').toLowerCase();

/** The name that is meant, also in snake case or in other cases; one letter in three may be wrong. */
function nearest(name: string, known: readonly string[]): string | undefined {
  const given = plain(name);
  const [best] = known
    .map((known) => ({ known, changes: changes(given, plain(known)) }))
    .filter(({ changes }) => changes <= given.length / 3)
    .sort((one, other) => one.changes - other.changes);
  return best?.known;
}

/** How many letters have to change until one text is the other. */
function changes(one: string, other: string): number {
  let row = Array.from({ length: other.length + 1 }, (_, at) => at);
  for (const [line, letter] of Array.from(one).entries()) {
    const next = [line + 1];
    for (const [at, above] of row.slice(1).entries()) {
      const replaced = (row[at] ?? 0) + (letter === other[at] ? 0 : 1);
      next.push(Math.min((next[at] ?? 0) + 1, above + 1, replaced));
    }
    row = next;
  }
  return row.at(-1) ?? 0;
}
