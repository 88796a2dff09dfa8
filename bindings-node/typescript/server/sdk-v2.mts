// What is used of @modelcontextprotocol/server 2.x. A namespace links where a name is missing in it, so that the seam
// can say so.
import * as node from '@modelcontextprotocol/node';
import * as server from '@modelcontextprotocol/server';

import type { Refusal } from '../native.mjs';
import type { Exchange, SeenRequest } from './exchange.mjs';
import type { ScopeChallenge } from './sdk.mjs';
import { insideOf, Seam } from './seam.mjs';

const NodeStock = node.NodeStreamableHTTPServerTransport;
const WebStock = server.WebStandardStreamableHTTPServerTransport;

const seam = new Seam('@modelcontextprotocol/server', [2, 4], {
  NodeStreamableHTTPServerTransport: NodeStock,
  'NodeStreamableHTTPServerTransport._webStandardTransport': insideOf(NodeStock),
  'NodeStreamableHTTPServerTransport.handleRequest': NodeStock?.prototype.handleRequest,
  OAuthError: server.OAuthError,
  OAuthErrorCode: server.OAuthErrorCode,
  ProtocolErrorCode: server.ProtocolErrorCode,
  SUPPORTED_PROTOCOL_VERSIONS: server.SUPPORTED_PROTOCOL_VERSIONS,
  Server: server.Server,
  WebStandardStreamableHTTPServerTransport: WebStock,
  'WebStandardStreamableHTTPServerTransport.close': WebStock?.prototype.close,
  'WebStandardStreamableHTTPServerTransport.handleRequest': WebStock?.prototype.handleRequest,
  'WebStandardStreamableHTTPServerTransport.send': WebStock?.prototype.send,
  'WebStandardStreamableHTTPServerTransport.start': WebStock?.prototype.start,
  bearerAuthChallengeResponse: server.bearerAuthChallengeResponse,
  classifyInboundRequest: server.classifyInboundRequest,
  createMcpHandler: server.createMcpHandler,
  getOAuthProtectedResourceMetadataUrl: server.getOAuthProtectedResourceMetadataUrl,
  isInitializeRequest: server.isInitializeRequest,
  isJsonContentType: server.isJsonContentType,
  parseJSONRPCMessage: server.parseJSONRPCMessage,
  toNodeHandler: node.toNodeHandler,
});

export const sdk = {
  seam,
  major: 2,
  NodeStock: seam.need('NodeStreamableHTTPServerTransport'),
  WebStock: seam.need('WebStandardStreamableHTTPServerTransport'),
  Server: server.Server,
  versions: server.SUPPORTED_PROTOCOL_VERSIONS,
  parseMessage: server.parseJSONRPCMessage,
  classifyInboundRequest: server.classifyInboundRequest,
  createMcpHandler: server.createMcpHandler,
  isInitializeRequest: server.isInitializeRequest,
  isJsonContentType: server.isJsonContentType,
  nodeHandler: node.toNodeHandler,
  /** What `onerror` gets for a body that is not taken: why, as from the SDK's class. */
  bodyError(refusal: Refusal, body: unknown): unknown {
    if (JSON.parse(refusal.body).error.code !== server.ProtocolErrorCode.ParseError) {
      return undefined;
    }
    try {
      const value = typeof body === 'object' && !Buffer.isBuffer(body) ? body : JSON.parse(String(body));
      (Array.isArray(value) ? value : [value]).forEach((message) => server.parseJSONRPCMessage(message));
    } catch (error) {
      return error;
    }
    return undefined;
  },
  /** What the function that makes a server is told of the request. */
  context: (exchange: Exchange): server.McpRequestContext => ({
    era: 'legacy',
    ...(exchange.auth !== undefined && { authInfo: exchange.auth as server.AuthInfo }),
    requestInfo: exchange.webRequest(),
  }),
  extra: (request: SeenRequest) => ({ authInfo: request.auth, request: request.webRequest() }),
  scopeChallengeResponse({ scopes, errorDescription }: ScopeChallenge, auth: unknown): Response {
    const authInfo = auth as server.AuthInfo | undefined;
    const error = new server.OAuthError(
      server.OAuthErrorCode.InsufficientScope,
      errorDescription ?? 'Insufficient scope',
    );
    return server.bearerAuthChallengeResponse(error, {
      requiredScopes: [...scopes],
      resourceMetadataUrl: authInfo?.resourceMetadataUrl ?? metadataUrl(authInfo?.resource),
    });
  },
};

function metadataUrl(resource: URL | undefined): string | undefined {
  return resource !== undefined && /^https?:$/.test(resource.protocol)
    ? server.getOAuthProtectedResourceMetadataUrl(resource)
    : undefined;
}
