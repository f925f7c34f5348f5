/** State of the server, and its text in the status bar. Imports no editor API, so that tests need no editor. */

/** Parameters of the server's notification `didChangeStatus`. */
export interface Status {
    kind: 'Normal' | 'Error' | 'Inactive';
    busy: boolean;
    message: string;
    model: string;
    tau: number | null;
    tokensPerSecond: number | null;
    shown: number;
    accepted: number;
}

export type State =
    | { is: 'off' }
    | { is: 'starting' }
    | { is: 'failed'; reason: string }
    | { is: 'running'; status: Status };

export interface Presentation {
    /** Text of the status bar item; `$(name)` is an icon. */
    text: string;
    /** Lines of the tooltip, plain text. */
    lines: string[];
    level: 'normal' | 'error';
}

export const UNKNOWN: Status = {
    kind: 'Normal',
    busy: false,
    message: '',
    model: '',
    tau: null,
    tokensPerSecond: null,
    shown: 0,
    accepted: 0,
};

/** Why the active editor gets no completions although the server runs: a few words, and a sentence for the tooltip. */
export interface Silence {
    state: string;
    why: string;
}

export function present(state: State, silence?: Silence): Presentation {
    switch (state.is) {
        case 'off':
            return { text: '$(circle-slash) localdflash: off', lines: ['Completions are off.'], level: 'normal' };
        case 'starting':
            return { text: '$(loading~spin) localdflash: starting', lines: ['The server is starting.'], level: 'normal' };
        case 'failed':
            return { text: '$(error) localdflash: not running', lines: [state.reason], level: 'error' };
        case 'running':
            return running(state.status, silence);
    }
}

function running(status: Status, silence?: Silence): Presentation {
    const [icon, word] = silence ? ['circle-slash', silence.state] : stateOf(status);
    const facts = [silence?.why ?? '', status.message, status.model && `Model: ${status.model}`, speed(status), use(status)];
    const lines = facts.filter((line) => line !== '');
    return {
        text: `$(${icon}) ${status.model || 'localdflash'}: ${word}`,
        lines: lines.length ? lines : ['Ready.'],
        level: LEVELS[status.kind],
    };
}

const STATES = {
    Normal: ['zap', 'ready'],
    Error: ['error', 'error'],
    Inactive: ['circle-slash', 'silent here'],
} as const;
const LEVELS = { Normal: 'normal', Error: 'error', Inactive: 'normal' } as const;

function stateOf(status: Status): readonly [string, string] {
    return status.busy && status.kind === 'Normal' ? ['loading~spin', 'thinking'] : STATES[status.kind];
}

function speed(status: Status): string {
    if (status.tau === null || status.tokensPerSecond === null) {
        return '';
    }
    return `${status.tokensPerSecond.toFixed(1)} tokens per second, ${status.tau.toFixed(2)} tokens per pass of the model (τ)`;
}

function use(status: Status): string {
    if (status.shown === 0) {
        return '';
    }
    const share = Math.round((100 * status.accepted) / status.shown);
    return `${status.shown} suggestions shown, ${status.accepted} accepted (${share} %)`;
}

/** Limit of restarts: a server that exited `MAX_EXITS` times within `WINDOW_MS` is not started again. */
export class RestartLimit {
    static readonly MAX_EXITS = 5;
    static readonly WINDOW_MS = 180_000;
    private exits: number[] = [];

    /** Record an exit; return whether the server may be started again. */
    recordExit(nowMs: number): boolean {
        this.exits = [...this.exits.filter((exit) => nowMs - exit < RestartLimit.WINDOW_MS), nowMs];
        return this.exits.length < RestartLimit.MAX_EXITS;
    }
}

/** Return whether completions are on for a language: its setting, else the setting of `*`, else true. */
export function isOn(languages: Record<string, unknown>, language: string): boolean {
    const setting = Object.hasOwn(languages, language) ? languages[language] : languages['*'];
    return setting !== false;
}
