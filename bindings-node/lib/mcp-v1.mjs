// For @modelcontextprotocol/sdk 1.x.
import { StreamableHTTPServerTransport as NodeStock } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { WebStandardStreamableHTTPServerTransport as WebStock } from '@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js';
import {
  JSONRPCMessageSchema,
  SUPPORTED_PROTOCOL_VERSIONS,
  isInitializeRequest,
} from '@modelcontextprotocol/sdk/types.js';

import { noteSdk } from './status.mjs';
import { storedSessionServers } from './stored-sessions.mjs';
import { resumableNode, resumableWeb } from './transport.mjs';

noteSdk('@modelcontextprotocol/sdk');

const sdk = {
  major: 1,
  versions: SUPPORTED_PROTOCOL_VERSIONS,
  parseMessage: (value) => JSONRPCMessageSchema.parse(value),
  isInitializeRequest,
  extra: (exchange) => ({ authInfo: exchange.auth, requestInfo: exchange.requestInfo() }),
};

export class StreamableHTTPServerTransport extends resumableNode(NodeStock, sdk) {}

export class WebStandardStreamableHTTPServerTransport extends resumableWeb(WebStock, sdk) {}

export const { serveStoredSession, fetchStoredSession } = storedSessionServers(sdk);

export { closeSSEStream, closeStandaloneSSEStream } from './close.mjs';
export { configure } from './configure.mjs';
export { openStore } from './open-store.mjs';
export { EventStore } from './store.mjs';
export { drain, setLog, stats } from './runtime.mjs';
export { status } from './status.mjs';
