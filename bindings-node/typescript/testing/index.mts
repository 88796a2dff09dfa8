// A test kit for one's own server: calls a tool, cuts its connection, comes back, and sees that nothing was lost.
//
// It speaks HTTP and knows nothing of the engine, so it tests any server of MCP's Streamable HTTP. Nothing that a
// server runs imports it.
export { type ErrorCode, type ErrorDetails, TailropeError } from '../errors.mjs';
export { NotExactlyOnce } from './errors.mjs';
export { type Handler, serve } from './server.mjs';
export { openSession } from './session.mjs';
export type { Call, Connection, Event, ServeOptions, Server, Session, SessionOptions } from './types.mjs';
