// What is used of @modelcontextprotocol/sdk 1.x. A namespace links where a name is missing in it, so that the seam can say
// so. A module that is missing fails before any code runs: Node's error then names this file, and so the version.
import type { AuthInfo } from '@modelcontextprotocol/sdk/server/auth/types.js';
import * as node from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import * as web from '@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js';
import * as types from '@modelcontextprotocol/sdk/types.js';

import type { Exchange, SeenRequest } from './exchange.mjs';
import { insideOf, Seam } from './seam.mjs';

const NodeStock = node.StreamableHTTPServerTransport;
const WebStock = web.WebStandardStreamableHTTPServerTransport;

const seam = new Seam('@modelcontextprotocol/sdk', [1, 30], {
  JSONRPCMessageSchema: types.JSONRPCMessageSchema,
  SUPPORTED_PROTOCOL_VERSIONS: types.SUPPORTED_PROTOCOL_VERSIONS,
  StreamableHTTPServerTransport: NodeStock,
  'StreamableHTTPServerTransport._webStandardTransport': insideOf(NodeStock),
  'StreamableHTTPServerTransport.close': NodeStock?.prototype.close,
  'StreamableHTTPServerTransport.handleRequest': NodeStock?.prototype.handleRequest,
  'StreamableHTTPServerTransport.send': NodeStock?.prototype.send,
  'StreamableHTTPServerTransport.start': NodeStock?.prototype.start,
  WebStandardStreamableHTTPServerTransport: WebStock,
  'WebStandardStreamableHTTPServerTransport.close': WebStock?.prototype.close,
  'WebStandardStreamableHTTPServerTransport.handleRequest': WebStock?.prototype.handleRequest,
  'WebStandardStreamableHTTPServerTransport.send': WebStock?.prototype.send,
  'WebStandardStreamableHTTPServerTransport.start': WebStock?.prototype.start,
  isInitializeRequest: types.isInitializeRequest,
});

export const sdk = {
  seam,
  major: 1,
  NodeStock: seam.need('StreamableHTTPServerTransport'),
  WebStock: seam.need('WebStandardStreamableHTTPServerTransport'),
  versions: types.SUPPORTED_PROTOCOL_VERSIONS,
  parseMessage: (value: unknown) => types.JSONRPCMessageSchema.parse(value),
  isInitializeRequest: types.isInitializeRequest,
  /** What the function that makes a server is told of the request. */
  context: (exchange: Exchange) => ({
    ...(exchange.auth !== undefined && { authInfo: exchange.auth as AuthInfo }),
    requestInfo: exchange.requestInfo(),
  }),
  extra: (request: SeenRequest) => ({ authInfo: request.auth, requestInfo: request.requestInfo() }),
};
