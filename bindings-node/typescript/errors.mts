// The one error of this package.

/** What an error may say. Stable, and the same in every language. */
export const ERROR_CODES = [
  // What was given, and where it runs.
  'invalid_argument',
  'unsupported_sdk',
  'native_missing',
  'internal',
  // Servers.
  'closed',
  'forked',
  'session_ended',
  'session_exists',
  'too_many_sessions',
  'finished',
  'full',
  // Event stores.
  'too_large',
  'store_full',
  'inbox_full',
  'gone',
  'out_of_order',
  'rolled_back',
  'fenced',
  'store_failed',
  'store_timed_out',
  'store_not_opened',
  // Clients: why a stream ended before it was complete.
  'session_lost',
  'stream_lost',
  'no_stream',
  'unauthorized',
  'unexpected_answer',
  'not_resumable',
  'gave_up',
  'event_too_large',
  // The test kit: a step of the test that could not be done.
  'not_started',
  'not_restartable',
  'no_connection',
  'refused',
  'timed_out',
  'no_cursor',
  'ended_early',
] as const;

export type ErrorCode = (typeof ERROR_CODES)[number];

/** What an error may have beside its code and its message. */
export type ErrorDetails = { status?: number; cause?: unknown };

/** One mark for all copies of the class: a process may load the ES modules and each of the CommonJS entries. */
const mark = Symbol.for('tailrope.error');

function isMarked(value: unknown): boolean {
  return typeof value === 'object' && value !== null && mark in value;
}

/** What Tailrope throws. `code` says what happened: docs/reference/errors.md has them all. */
export class TailropeError extends Error {
  readonly code: ErrorCode;
  /** The HTTP status, where an HTTP answer was the reason. */
  declare readonly status?: number;

  constructor(code: ErrorCode, message: string, { status, cause }: ErrorDetails = {}) {
    super(message, cause === undefined ? undefined : { cause });
    this.code = code;
    if (status !== undefined) {
      this.status = status;
    }
  }

  static {
    Object.defineProperty(TailropeError.prototype, 'name', {
      value: 'TailropeError',
      configurable: true,
      writable: true,
    });
    Object.defineProperty(TailropeError.prototype, mark, { value: true });
  }

  /** An instance is what any loaded copy of this package throws. */
  static override [Symbol.hasInstance](value: unknown): boolean {
    // biome-ignore lint/complexity/noThisInStatic: a subclass has instances of its own.
    return this === TailropeError ? isMarked(value) : Function.prototype[Symbol.hasInstance].call(this, value);
  }
}

/** Throws what every wrong argument throws. */
export function invalid(message: string): never {
  throw new TailropeError('invalid_argument', message);
}

function isCode(code: unknown): code is ErrorCode {
  return (ERROR_CODES as readonly unknown[]).includes(code);
}

/** What the native half threw, as the error that users get: its errors have our codes. Others are passed on. */
export function ours(error: unknown): unknown {
  const isForeign = error instanceof Error && !(error instanceof TailropeError);
  return isForeign && 'code' in error && isCode(error.code) ? new TailropeError(error.code, error.message) : error;
}

/** The error that the native half gave as a code and a text. */
export function told(code: string, message: string | undefined, more?: ErrorDetails): TailropeError {
  return new TailropeError(isCode(code) ? code : 'internal', message ?? code, more);
}
