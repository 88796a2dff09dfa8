// For @modelcontextprotocol/server 2.x.
import { NodeStreamableHTTPServerTransport as Stock } from '@modelcontextprotocol/node';
import {
  OAuthError,
  OAuthErrorCode,
  SUPPORTED_PROTOCOL_VERSIONS,
  bearerAuthChallengeResponse,
  getOAuthProtectedResourceMetadataUrl,
  isInitializeRequest,
  parseJSONRPCMessage,
} from '@modelcontextprotocol/server';

import { webRequest } from './request.mjs';
import { resumable } from './transport.mjs';

const sdk = {
  major: 2,
  versions: SUPPORTED_PROTOCOL_VERSIONS,
  parseMessage: parseJSONRPCMessage,
  isInitializeRequest,
  extra: (req) => ({ authInfo: req.auth, request: webRequest(req) }),
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

export class NodeStreamableHTTPServerTransport extends resumable(Stock, sdk) {}

export { closeSSEStream, closeStandaloneSSEStream } from './close.mjs';
export { EventStore } from './event-store.mjs';
export { drain, setLog, stats } from './runtime.mjs';
