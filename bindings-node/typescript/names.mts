// Names of options, however they are written.

const plain = (text: string) => text.replaceAll('_', '').toLowerCase();

/** Finds the name that is meant, also in snake case or in other cases. */
export function names(known: Iterable<string>): (name: string) => string | undefined {
  const byPlain = new Map(Array.from(known, (name) => [plain(name), name]));
  return (name) => byPlain.get(plain(name));
}
