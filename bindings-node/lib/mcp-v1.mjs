// For @modelcontextprotocol/sdk 1.x.
import { StreamableHTTPServerTransport as Stock } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import {
  JSONRPCMessageSchema,
  SUPPORTED_PROTOCOL_VERSIONS,
  isInitializeRequest,
} from '@modelcontextprotocol/sdk/types.js';

import { requestInfo } from './request.mjs';
import { resumable } from './transport.mjs';

const sdk = {
  major: 1,
  versions: SUPPORTED_PROTOCOL_VERSIONS,
  parseMessage: (value) => JSONRPCMessageSchema.parse(value),
  isInitializeRequest,
  extra: (req) => ({ authInfo: req.auth, requestInfo: requestInfo(req) }),
};

export class StreamableHTTPServerTransport extends resumable(Stock, sdk) {}

export { closeSSEStream, closeStandaloneSSEStream } from './close.mjs';
export { EventStore } from './event-store.mjs';
export { drain, setLog, stats } from './runtime.mjs';
