/** What the extension knows of its server, and how the status bar says it. No editor in here: it is tested without one. */

/** `didChangeStatus`, as the server sends it. */
export interface Status {
    kind: 'Normal' | 'Warning' | 'Error' | 'Inactive';
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
    /** Of the status bar item; `$(name)` is an icon. */
    text: string;
    /** Lines of the tooltip, plain text. */
    lines: string[];
    level: 'normal' | 'warning' | 'error';
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

/** `silent` is why there is nothing to see in the present editor although the server runs; empty when there is no reason. */
export function present(state: State, silent: string): Presentation {
    switch (state.is) {
        case 'off':
            return { text: '$(circle-slash) localdflash', lines: ['Completions are off.'], level: 'normal' };
        case 'starting':
            return { text: '$(loading~spin) localdflash', lines: ['The server is starting.'], level: 'normal' };
        case 'failed':
            return { text: '$(error) localdflash', lines: [state.reason], level: 'error' };
        case 'running':
            return running(state.status, silent);
    }
}

function running(status: Status, silent: string): Presentation {
    const icon = silent ? 'circle-slash' : status.busy ? 'loading~spin' : ICONS[status.kind];
    const said = [silent, status.message, status.model && `Model: ${status.model}`, speed(status), use(status)];
    const lines = said.filter((line) => line !== '');
    return {
        text: `$(${icon}) ${figures(status) || 'localdflash'}`,
        lines: lines.length ? lines : ['Ready.'],
        level: LEVELS[status.kind],
    };
}

const ICONS = { Normal: 'zap', Warning: 'warning', Error: 'error', Inactive: 'circle-slash' } as const;
const LEVELS = { Normal: 'normal', Warning: 'warning', Error: 'error', Inactive: 'normal' } as const;

function figures(status: Status): string {
    const tau = status.tau === null ? '' : `τ ${status.tau.toFixed(1)}`;
    const rate = status.tokensPerSecond === null ? '' : `${Math.round(status.tokensPerSecond)} tok/s`;
    return [tau, rate].filter((part) => part !== '').join(' · ');
}

function speed(status: Status): string {
    if (status.tau === null || status.tokensPerSecond === null) {
        return '';
    }
    return `${status.tokensPerSecond.toFixed(1)} tokens per second, ${status.tau.toFixed(2)} for each pass of the model (τ)`;
}

function use(status: Status): string {
    if (status.shown === 0) {
        return '';
    }
    const share = Math.round((100 * status.accepted) / status.shown);
    return `${status.shown} suggestions shown, ${status.accepted} accepted (${share} %)`;
}

/** Is a server that ends worth another try? Not when it ended `MOST` times within `WINDOW` milliseconds. */
export class Endings {
    static readonly MOST = 5;
    static readonly WINDOW = 180_000;
    private times: number[] = [];

    /** Count one at a time in milliseconds; true if the server may be started again. */
    add(now: number): boolean {
        this.times = [...this.times.filter((time) => now - time < Endings.WINDOW), now];
        return this.times.length < Endings.MOST;
    }
}

/** Whether completions are on for a language: what is said of it, else what is said of `*`, else yes. */
export function isOn(languages: Record<string, unknown>, language: string): boolean {
    const said = Object.hasOwn(languages, language) ? languages[language] : languages['*'];
    return said !== false;
}
