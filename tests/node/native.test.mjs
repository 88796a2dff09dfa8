// What native-api.cts says of the native half, and what that has.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

import { ERROR_CODES } from '../../bindings-node/lib/errors.mjs';
import { ours, test } from './kit/test.mjs';

const native = createRequire(import.meta.url)('../../bindings-node/tailrope.node');

/** What every function has, and every prototype. */
const OF_FUNCTIONS = ['length', 'name', 'arguments', 'caller', 'prototype'];
const OF_PROTOTYPES = ['constructor'];

/** Each member as it is written: `get name` of an instance, `name()`, `static name()`. */
function membersOf(owner, prefix, leftOut) {
  return Object.entries(Object.getOwnPropertyDescriptors(owner))
    .filter(([name]) => !leftOut.includes(name))
    .map(([name, { get }]) => prefix + (get === undefined ? `${name}()` : `get ${name}`));
}

function found(name, exported) {
  const statics = membersOf(exported, 'static ', OF_FUNCTIONS);
  const members = [...statics, ...membersOf(exported.prototype ?? {}, '', OF_PROTOTYPES)];
  return /^[a-z]/.test(name) ? 'function' : members.sort();
}

function declared(text) {
  const [, ...classes] = text.split(/^export declare class /m);
  const functions = [...text.matchAll(/^export declare function (\w+)/gm)].map(([, name]) => [name, 'function']);
  const members = (body) =>
    [...body.matchAll(/^ {4}(static |get )?(?!constructor\b|private\b)(\w+)\(/gm)].map(([, word = '', name]) =>
      word === 'get ' ? `get ${name}` : `${word}${name}()`,
    );
  const named = classes.map((text) => [text.match(/^\w+/)[0], members(text.slice(0, text.indexOf('\n}'))).sort()]);
  return Object.fromEntries([...functions, ...named]);
}

test('the types of the native half name what it has, and nothing else', ours, () => {
  const types = readFileSync(new URL('../../bindings-node/lib/native-api.d.cts', import.meta.url), 'utf8');
  const exported = Object.entries(native).map(([name, value]) => [name, found(name, value)]);
  assert.deepEqual(declared(types), Object.fromEntries(exported));
});

test('the codes of errors are those of the core', ours, () => {
  assert.deepEqual([...ERROR_CODES].sort(), native.errorCodes().sort());
});
