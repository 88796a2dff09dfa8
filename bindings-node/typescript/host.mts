// Calls into the host's program, whose functions may throw anything, at once or as a promise.

/**
 * Calls a function of the host's. What it throws goes to `failed`, which throws nothing: nobody else waits for it, so it would end
 * the process.
 */
export function callHost(call: () => unknown, failed: (error: unknown) => void): void {
  try {
    const called = call() as PromiseLike<unknown> | null | undefined;
    if (typeof called?.then === 'function') {
      called.then(undefined, failed);
    }
  } catch (error) {
    failed(error);
  }
}

/** What was thrown, with its stack where it has one, for the log. */
export function traceOf(error: unknown): string {
  try {
    return error instanceof Error && error.stack ? error.stack : describe(error);
  } catch {
    return describe(error);
  }
}

/** What was thrown, in one line. */
export function describe(error: unknown): string {
  try {
    return error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  } catch {
    return 'an error that cannot be shown';
  }
}
