// What Tailrope uses of an SDK, and whether it is there. Looked at when the SDK's part is first used.
import { readFileSync } from 'node:fs';
// Not by its name, which banners of bundlers declare for their own use.
import * as modules from 'node:module';
import { join } from 'node:path';

import { TailropeError } from '../errors.mjs';
import { isDisabled } from '../platform.mjs';
import { state, writeLog } from '../runtime.mjs';
import type { Sdk } from './sdk.mjs';

/** One line of the SDK, and what is used of it. */
export class Seam<Uses extends Record<string, unknown> = Record<string, unknown>> {
  #name: string;
  #oldest: readonly [major: number, minor: number];
  #uses: Uses;
  #difference: string | undefined;
  #isLooked = false;
  #isTold = false;

  /**
   * `oldest` is the first version that is supported, as `[major, minor]`; `uses` has what is used, by name, and of
   * classes their methods by `Class.method`.
   */
  constructor(name: string, oldest: readonly [major: number, minor: number], uses: Uses) {
    this.#name = name;
    this.#oldest = oldest;
    this.#uses = uses;
    state.seams.set(name, this);
  }

  /** The SDK with its version, where that can be read. */
  get found(): string {
    return [this.#name, this.#version].filter(Boolean).join(' ');
  }

  /** The version of the installed package; nothing where that cannot be told, as in a bundle. */
  get #version(): string | undefined {
    try {
      for (const folder of modules.createRequire(import.meta.url).resolve.paths(this.#name) ?? []) {
        try {
          return JSON.parse(readFileSync(join(folder, this.#name, 'package.json'), 'utf8')).version;
        } catch {
          // It may be in the next one.
        }
      }
    } catch {
      // Nothing can be looked up from here.
    }
    return undefined;
  }

  /** How the SDK differs from what Tailrope was written for; nothing where it does not. */
  get difference(): string | undefined {
    if (!this.#isLooked) {
      this.#difference = this.#look();
      this.#isLooked = true;
    }
    return this.#difference;
  }

  #look(): string | undefined {
    const [major, minor] = (this.#version ?? '').match(/\d+/g) ?? [];
    if (Number(major) < this.#oldest[0] || (Number(major) === this.#oldest[0] && Number(minor) < this.#oldest[1])) {
      return 'it is too old. Upgrade it';
    }
    for (const [path, used] of Object.entries(this.#uses)) {
      if (used === undefined) {
        return `it has no ${path}`;
      }
    }
    return undefined;
  }

  /** A class of the SDK's without which there is nothing to fall back to. */
  need<Name extends keyof Uses>(name: Name): Uses[Name] {
    if (this.#uses[name] === undefined) {
      throw this.unsupported(this.difference);
    }
    return this.#uses[name];
  }

  /** The error for an SDK that Tailrope does not fit under. */
  unsupported(difference: string | undefined): TailropeError {
    return new TailropeError('unsupported_sdk', this.#text(difference));
  }

  #text(difference: string | undefined): string {
    const [major, minor] = this.#oldest;
    const supported = `${this.#name} ${major}.${minor} and later ${major}.x`;
    return `Tailrope does not fit under ${this.found} (supported: ${supported}): ${difference}.`;
  }

  /**
   * Whether Tailrope serves under this SDK. Where it does not fit, the first use is an error in the log, or throws
   * where `configure()` was told so.
   */
  get isServed(): boolean {
    if (this.difference === undefined) {
      return true;
    }
    if (state.onUnsupported === 'raise') {
      throw this.unsupported(this.difference);
    }
    if (!this.#isTold) {
      this.#isTold = true;
      writeLog('error', this.#notice(this.difference));
    }
    return false;
  }

  /** What the difference means; nothing where there is none. */
  get notice(): string | undefined {
    return this.difference === undefined ? undefined : this.#notice(this.difference);
  }

  #notice(difference: string): string {
    return `${this.#text(difference)} The SDK's own transports serve: calls cannot be resumed on lost connections`;
  }
}

/** The transport for the web platform that an SDK's transport for node:http has inside. */
export function insideOf(Stock: (new () => object) | undefined): unknown {
  return Stock && Reflect.get(new Stock(), '_webStandardTransport');
}

/** Whether the SDK's own classes serve. */
export function isStock(sdk: Sdk): boolean {
  return isDisabled() || !sdk.seam.isServed;
}
