// What the native half has, see native.cjs.
import native from './native.cjs';

export const { ClientOptions, ClientStream, Engine, Refusal, Store, probe } = native;
