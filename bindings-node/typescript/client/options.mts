// What programs say about how streams come back, taken apart and checked.
import { invalid, ours } from '../errors.mjs';
import { ClientOptions } from '../native.mjs';
import { checkNames } from '../options.mjs';

/** Part of `fetch` that is used. */
export type FetchLike = (input: string | URL | Request, init?: RequestInit) => Promise<Response>;

export type HeaderValues = Headers | [string, string][] | Record<string, string>;

export interface Resume {
  /** The cursor that is sent; null where a standalone stream has none. */
  lastEventId: string | null;
  /** Which try it is since the last that brought something; the first is 1. */
  attempt: number;
  /** How long the stream waited before it, in milliseconds. */
  delayMs: number;
  /** The ids of the requests that still wait. */
  requests: (number | string)[];
}

export interface Gap {
  /** The position of the first event that is lost; null where the server refused the cursor of a standalone stream. */
  first: number | null;
  /** How many are lost; null likewise. */
  count: number | null;
}

/** How streams come back. Durations are in milliseconds. Where `null` is taken it means "never" or "any number". */
export interface ResumeOptions {
  /** The wait before a resume while the stream has told no `retry`. Default 1,000. */
  initialDelayMs?: number;
  /** The longest wait that back-off makes; a longer `retry` is waited all the same, up to an hour. Default 30,000. */
  maxDelayMs?: number;
  /** By how much the wait grows with each failure in a row, 1 to 100. Default 1.5. */
  growth?: number;
  /** How much longer the wait is at most, as a share of it, 0 to 10. Default 0.25. */
  jitter?: number;
  /** No further try when tries without progress took so long. Default 600,000 (10 minutes). */
  giveUpAfterMs?: number | null;
  /** How many tries without progress are made. Default 100. */
  maxAttempts?: number | null;
  /**
   * A connection that is silent for so long counts as broken. One that cannot be resumed then ends, and its requests get
   * `not_resumable`. Default 300,000.
   */
  maxSilenceMs?: number | null;
  /** What one event may hold, in bytes. Default 64 MiB. */
  maxEventBytes?: number;
  /** Headers for the connections that Tailrope makes: values, or a function that is called before each. */
  headers?: HeaderValues | (() => HeaderValues | undefined | Promise<HeaderValues | undefined>);
  /** Called before each resume. */
  onResume?: (resume: Resume) => void;
  /** Called when events are lost. */
  onGap?: (gap: Gap) => void;
  /**
   * Calls `wake` after `delayMs`, for programs that do not run all the time; calling it early or twice does no harm.
   * What it returns is called where nobody waits any more. Default: timers.
   */
  schedule?: (delayMs: number, wake: () => void) => (() => void) | void;
}

/** Where the server of a saved stream is; the session and the revision come from the stream's token. */
export interface Where {
  url: string | URL;
  headers?: ResumeOptions['headers'];
  signal?: AbortSignal;
}

/** What this half does itself; the rest is the native half's. */
export interface Settings extends Pick<ResumeOptions, 'headers' | 'onResume' | 'onGap' | 'schedule'> {
  fetch: FetchLike;
}

const NUMBERS = [
  'initialDelayMs',
  'maxDelayMs',
  'growth',
  'jitter',
  'giveUpAfterMs',
  'maxAttempts',
  'maxSilenceMs',
  'maxEventBytes',
];
const RESUME_OPTIONS = [...NUMBERS, 'headers', 'onGap', 'onResume', 'schedule'];

/** Takes options apart: those of the native half, checked, and those of ours. */
export function settingsOf(fetch: FetchLike, options: ResumeOptions): { settings: Settings; native: ClientOptions } {
  checkNames(options, RESUME_OPTIONS, 'resumableFetch() and stream()');
  const { headers, onResume, onGap, schedule, ...others } = options;
  for (const [name, callback] of Object.entries({ fetch, onResume, onGap, schedule })) {
    if (callback !== undefined && typeof callback !== 'function') {
      invalid(`${name} must be a function`);
    }
  }
  if (!['undefined', 'function', 'object'].includes(typeof headers)) {
    invalid('headers must be values or a function');
  }
  const numbers: Record<string, number | null> = {};
  for (const [name, value] of Object.entries<unknown>(others)) {
    if (value === undefined) {
      continue;
    }
    if (typeof value === 'number' || value === null) {
      numbers[name] = value;
    } else {
      invalid(`${name} must be a number`);
    }
  }
  try {
    return { settings: { fetch, headers, onResume, onGap, schedule }, native: new ClientOptions(numbers) };
  } catch (error) {
    throw ours(error);
  }
}
