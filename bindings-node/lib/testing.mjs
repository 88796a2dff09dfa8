// A test kit for one's own server: calls a tool, cuts its connection, comes back, and sees that nothing was lost.
//
// It speaks HTTP and knows nothing of the engine, so it tests any server of MCP's Streamable HTTP. Nothing that a
// server runs imports it.
export { KitError, NotExactlyOnce } from './testing-errors.mjs';
export { serve } from './testing-server.mjs';
export { openSession } from './testing-session.mjs';
