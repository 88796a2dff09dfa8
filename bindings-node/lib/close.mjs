// Closing connections from a handler (SEP-1699), with the options that the SDKs' types do not name.

/**
 * Closes the connection that carries this request's stream; the request runs on. `context` is what
 * the handler got: `extra` of the 1.x SDK, `ctx` of the 2.x SDK. With `retryMs` the stream's clients
 * come back after that time, now and on later closes; with `holdMs` a resumed connection is closed
 * again after that time (0 = pure polling). Returns false where nothing can be resumed.
 */
export function closeSSEStream(context, options) {
  return called(context.http?.closeSSE ?? context.closeSSEStream, options);
}

/** Closes the connection of the session's standalone stream, likewise. */
export function closeStandaloneSSEStream(context, options) {
  return called(context.http?.closeStandaloneSSE ?? context.closeStandaloneSSEStream, options);
}

function called(close, options) {
  return close === undefined ? false : (close(options) ?? true);
}
