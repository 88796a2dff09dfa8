// The head of a request, as native functions take it, from the parts that it has.
import { headOf } from '../../../bindings-node/lib/server/head.mjs';

export const head = ({ method, accept, contentType, protocolVersion, sessionId, lastEventId }) =>
  headOf(method, accept, contentType, protocolVersion, sessionId, lastEventId);
