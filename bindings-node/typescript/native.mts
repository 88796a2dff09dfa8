// What the native half has, see native-api.cts; or why it is not there.
import { TailropeError } from './errors.mjs';
import native from './native.cjs';
import type * as api from './native-api.cjs';

const { failed, platforms } = native;

function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function unloaded(): TailropeError {
  const tried = failed.map(({ name, error }) => `${name} (${textOf(error).split('\n')[0]})`);
  const message = `The native half of tailrope is not loaded: ${reason()}. It was looked for as ${tried.join(', ')}`;
  // Of the package that is looked for first on this platform, where there is one.
  return new TailropeError('native_missing', message, { cause: (failed[1] ?? failed[0])?.error });
}

/** What happened, and what to do. */
function reason(): string {
  const of = (code: string) =>
    failed.find(({ error }) => error instanceof Error && 'code' in error && error.code === code);
  if (of('ERR_DLOPEN_DISABLED')) {
    return 'this process may not load native addons. Start Node with --allow-addons, or without --no-addons';
  }
  if (of('ERR_ACCESS_DENIED')) {
    return 'this process may not read its files. Start Node with --allow-fs-read for the folder of its packages';
  }
  if (failed.some(({ error }) => /Dynamic require of|require is not defined/.test(textOf(error)))) {
    return (
      'a bundler made an ES module of this program, which has no `require`. Mark `tailrope` as external and install it ' +
      'beside the bundle, or give the bundle a `require`: with esbuild by a banner that calls createRequire'
    );
  }
  const unfit = of('ERR_DLOPEN_FAILED');
  if (unfit) {
    return `${unfit.name} is there and does not fit this system. Install the package again on this system, not by a copy`;
  }
  if (failed.length === 1) {
    return (
      `there is no package for ${process.platform} on ${process.arch}, but for ${platforms.join(', ')}. ` +
      'Elsewhere, build it in a clone of the repository: `npm ci`'
    );
  }
  return (
    'no package with it is installed, or a bundler left it behind. Install tailrope with its optional dependencies ' +
    '(`npm install --include=optional`); in a bundle, mark `tailrope` as external and install it beside the bundle'
  );
}

const { loaded } = native;
if (loaded === undefined) {
  throw unloaded();
}
export const { Admission, ClientOptions, ClientRepeats, ClientStream, Engine, Front, Refusal, Store, command } = loaded;

export type Admission = api.Admission;
export type Adopted = api.Adopted;
export type Arrival = api.Arrival;
export type LookUp = api.LookUp;
export type Offer = api.Offer;
export type Requester = api.Requester;
export type Body = api.Body;
export type ClientOptions = api.ClientOptions;
export type ClientPosted = api.ClientPosted;
export type ClientRepeats = api.ClientRepeats;
export type ClientStep = api.ClientStep;
export type ClientSteps = api.ClientSteps;
export type ClientStream = api.ClientStream;
export type CallSpan = api.CallSpan;
export type Connection = api.Connection;
export type Engine = api.Engine;
export type Front = api.Front;
export type FrontTerms = api.FrontTerms;
export type Frames = api.Frames;
export type Head = api.Head;
export type HookLog = api.HookLog;
export type HookOutcome = api.HookOutcome;
export type HostOperation = api.HostOperation;
export type Observed = api.Observed;
export type Outcome = api.Outcome;
export type Polled = api.Polled;
export type Posted = api.Posted;
export type Refusal = api.Refusal;
export type Replayed = api.Replayed;
export type RequestId = api.RequestId;
export type Routed = api.Routed;
export type Session = api.Session;
export type Store = api.Store;
export type TaskCall = api.TaskCall;
export type TaskQuery = api.TaskQuery;
export type TaskRequest = api.TaskRequest;
export type TaskStep = api.TaskStep;
export type TaskSubscription = api.TaskSubscription;
export type Travelled = api.Travelled;
export type Travelling = api.Travelling;
