// `tailrope probe URL`: words on the command line, words on the terminal, an exit status.
import { Unusable } from './probe-facts.mjs';
import { CHECKS, USAGE, probe } from './probe-report.mjs';

const FLAGS = ['--json', '--help'];
const VALUES = ['--tool', '--arguments', '--header', '--timeout-ms', '--idle-ms', '--only', '--skip'];

class UsageError extends Error {}

/** The options, and whether the report is wanted as JSON. */
function parse(words) {
  const urls = [];
  const given = new Map();
  const rest = words[Symbol.iterator]();
  for (const word of { [Symbol.iterator]: () => rest }) {
    const equals = word.indexOf('=');
    const name = equals < 0 ? word : word.slice(0, equals);
    if (!word.startsWith('--')) {
      urls.push(word);
    } else if (FLAGS.includes(word)) {
      given.set(word, []);
    } else if (VALUES.includes(name)) {
      const value = equals < 0 ? rest.next().value : word.slice(equals + 1);
      if (value === undefined) {
        throw new UsageError(`${name} needs a value`);
      }
      given.set(name, [...(given.get(name) ?? []), value]);
    } else {
      throw new UsageError(`no option ${name}`);
    }
  }
  if (urls.length !== 1 || !isHttp(urls[0])) {
    throw new UsageError('give one URL, http:// or https://');
  }
  const headers = Object.fromEntries((given.get('--header') ?? []).map(header));
  const tool = given.get('--tool')?.at(-1);
  if (given.has('--arguments') && tool === undefined) {
    argumentsOf(given.get('--arguments').at(-1));
    throw new UsageError('--arguments needs --tool');
  }
  const options = {
    url: urls[0],
    headers,
    tool,
    arguments: given.has('--arguments') ? argumentsOf(given.get('--arguments').at(-1)) : undefined,
    timeoutMs: milliseconds('--timeout-ms', given, 5_000),
    idleMs: milliseconds('--idle-ms', given, 20_000),
    only: names('--only', given),
    skip: names('--skip', given),
  };
  return { options, isJson: given.has('--json') };
}

function isHttp(text) {
  try {
    return /^https?:\/\//i.test(text) && new URL(text).hostname !== '';
  } catch {
    return false;
  }
}

function header(text) {
  const colon = text.indexOf(':');
  if (colon < 0 || text.slice(0, colon).trim() === '' || /[\r\n\0]/.test(text)) {
    // The value may be a secret, so it is not said again.
    throw new UsageError("--header is 'NAME: VALUE'");
  }
  return [text.slice(0, colon).trim(), text.slice(colon + 1).trim()];
}

function argumentsOf(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    // Said below.
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw new UsageError('--arguments is a JSON object');
  }
  return value;
}

function milliseconds(name, given, byDefault) {
  const text = given.get(name)?.at(-1) ?? String(byDefault);
  const number = /^[0-9]+$/.test(text) ? Number(text) : 0;
  if (number < 1 || number > 3_600_000) {
    throw new UsageError(`${name} is a number of milliseconds, up to 3600000`);
  }
  return number;
}

function names(option, given) {
  const wanted = (given.get(option) ?? []).flatMap((text) => text.split(',')).filter((name) => name !== '');
  const known = CHECKS.map(({ name }) => name);
  for (const name of wanted) {
    if (!known.includes(name)) {
      throw new UsageError(`no check ${name}: there are ${known.join(', ')}`);
    }
  }
  return wanted;
}

/** Runs one command; resolves to its exit status. */
export async function main(words, { log, error: complain } = console) {
  const usage = USAGE.join('\n');
  if (words.includes('--help') || words.includes('-h')) {
    log(usage);
    return 0;
  }
  try {
    if (words[0] !== 'probe') {
      throw new UsageError('give a command: probe');
    }
    const { options, isJson } = parse(words.slice(1));
    const report = await probe(options);
    log(isJson ? JSON.stringify(report, undefined, 2) : report.toText());
    return report.exit;
  } catch (error) {
    if (error instanceof UsageError) {
      complain(`tailrope: ${error.message}\n\n${usage}`);
    } else if (error instanceof Unusable) {
      complain(`tailrope: ${error.message}`);
    } else {
      throw error;
    }
    return 2;
  }
}
