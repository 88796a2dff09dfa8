// For @modelcontextprotocol/server 2.x.
import { NodeStreamableHTTPServerTransport as NodeStock, toNodeHandler } from '@modelcontextprotocol/node';
import {
  OAuthError,
  OAuthErrorCode,
  ProtocolErrorCode,
  SUPPORTED_PROTOCOL_VERSIONS,
  WebStandardStreamableHTTPServerTransport as WebStock,
  bearerAuthChallengeResponse,
  classifyInboundRequest,
  createMcpHandler,
  getOAuthProtectedResourceMetadataUrl,
  isInitializeRequest,
  isJsonContentType,
  parseJSONRPCMessage,
} from '@modelcontextprotocol/server';

import { resumableHandler } from './handler.mjs';
import { noteSdk } from './status.mjs';
import { StoredSessions, storedSessionServers } from './stored-sessions.mjs';
import { resumableExchange, resumableNode, resumableWeb } from './transport.mjs';

noteSdk('@modelcontextprotocol/server');

const sdk = {
  major: 2,
  versions: SUPPORTED_PROTOCOL_VERSIONS,
  parseMessage: parseJSONRPCMessage,
  isInitializeRequest,
  /** What `onerror` gets for a body that is not taken: why, as from the SDK's class. */
  bodyError(refusal, body) {
    if (JSON.parse(refusal.body).error.code !== ProtocolErrorCode.ParseError) {
      return undefined;
    }
    try {
      const value = typeof body === 'object' && !Buffer.isBuffer(body) ? body : JSON.parse(String(body));
      (Array.isArray(value) ? value : [value]).forEach(parseJSONRPCMessage);
    } catch (error) {
      return error;
    }
    return undefined;
  },
  extra: (exchange) => ({ authInfo: exchange.auth, request: exchange.webRequest() }),
  scopeChallengeResponse({ scopes, errorDescription }, authInfo) {
    const error = new OAuthError(OAuthErrorCode.InsufficientScope, errorDescription ?? 'Insufficient scope');
    return bearerAuthChallengeResponse(error, {
      requiredScopes: [...scopes],
      resourceMetadataUrl: authInfo?.resourceMetadataUrl ?? metadataUrl(authInfo?.resource),
    });
  },
};

function metadataUrl(resource) {
  return /^https?:$/.test(resource?.protocol) ? getOAuthProtectedResourceMetadataUrl(resource) : undefined;
}

export class NodeStreamableHTTPServerTransport extends resumableNode(NodeStock, sdk) {}

export class WebStandardStreamableHTTPServerTransport extends resumableWeb(WebStock, sdk) {}

export const { serveStoredSession, fetchStoredSession } = storedSessionServers(sdk);

export const createResumableMcpHandler = resumableHandler(resumableExchange(WebStock, sdk), {
  classifyInboundRequest,
  createMcpHandler,
  isInitializeRequest,
  isJsonContentType,
  storedSessions: (options) => new StoredSessions(sdk, options),
  toNodeHandler,
});

export { closeSSEStream, closeStandaloneSSEStream } from './close.mjs';
export { configure } from './configure.mjs';
export { openStore } from './open-store.mjs';
export { EventStore } from './store.mjs';
export { drain, setLog, stats } from './runtime.mjs';
export { status } from './status.mjs';
