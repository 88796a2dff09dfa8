// For @modelcontextprotocol/server 2.x.
import { resumableHandler } from './handler.mjs';
import { sessionRouter } from './router.mjs';
import { sdk } from './sdk-v2.mjs';
import { storedSessionServers } from './stored-sessions.mjs';
import { resumableNodeOverWeb, resumableWeb } from './transport.mjs';

export class NodeStreamableHTTPServerTransport extends resumableNodeOverWeb(sdk.WebStock, sdk) {}

export class WebStandardStreamableHTTPServerTransport extends resumableWeb(sdk.WebStock, sdk) {}

export const createSessionRouter = sessionRouter(sdk, {
  node: NodeStreamableHTTPServerTransport,
  fetch: WebStandardStreamableHTTPServerTransport,
});

export const { serveStoredSession, fetchStoredSession } = storedSessionServers(sdk);

export const createResumableMcpHandler = resumableHandler(sdk);

export { closeSSEStream, closeStandaloneSSEStream } from './close.mjs';
export { configure } from './configure.mjs';
export { openStore } from './open-store.mjs';
export { EventStore } from './store.mjs';
export { drain, setLog, stats } from './runtime.mjs';
export { status } from './status.mjs';
