// For @modelcontextprotocol/sdk 1.x.
import { sessionRouter } from './router.mjs';
import { sdk } from './sdk-1.30-or-later.mjs';
import { storedSessionServers } from './stored-sessions.mjs';
import { resumableNode, resumableWeb } from './transport.mjs';

export class StreamableHTTPServerTransport extends resumableNode(sdk.NodeStock, sdk) {}

export class WebStandardStreamableHTTPServerTransport extends resumableWeb(sdk.WebStock, sdk) {}

export const createSessionRouter = sessionRouter(sdk, {
  node: StreamableHTTPServerTransport,
  fetch: WebStandardStreamableHTTPServerTransport,
});

export const { serveStoredSession, fetchStoredSession } = storedSessionServers(sdk);

export { closeSSEStream, closeStandaloneSSEStream } from './close.mjs';
export { configure } from './configure.mjs';
export { openStore } from './open-store.mjs';
export { EventStore } from './store.mjs';
export { drain, setLog, stats } from './runtime.mjs';
export { status } from './status.mjs';
