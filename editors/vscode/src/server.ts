/**
 * Language server process: start it, restart it when it ends, and give up with one message after repeated failures.
 * Failures of single requests go only to the log.
 */

import { homedir } from 'node:os';
import * as vscode from 'vscode';
import { CloseAction, ErrorAction, LanguageClient, type LanguageClientOptions } from 'vscode-languageclient/node';
import type { NextEditView } from './next_edit_view';
import * as settings from './settings';
import { Endings, UNKNOWN, type State, type Status } from './state';

const HANDSHAKE_TIMEOUT_MS = 30_000; // Python's imports from a cold disk take seconds
const STOP_TIMEOUT_MS = 2_000;

export class Server implements vscode.Disposable {
    private readonly changed = new vscode.EventEmitter<State>();
    readonly onDidChange = this.changed.event;
    private client: LanguageClient | undefined;
    private endings = new Endings();
    private turn: Promise<void> = Promise.resolve();
    private now: State = { is: 'off' };

    /** `silent` returns whether a document gets no completions; `asked`: the user requested one explicitly. */
    constructor(
        private readonly log: vscode.LogOutputChannel,
        private readonly silent: (document: vscode.TextDocument, asked: boolean) => boolean,
        private readonly nextEdit: NextEditView,
    ) {}

    get state(): State {
        return this.now;
    }

    /** Stop the server, and start it if the settings enable it. Concurrent calls run one after the other. */
    restart(): Promise<void> {
        this.endings = new Endings();
        return this.next(() => (settings.enabled() ? this.start() : Promise.resolve(this.become({ is: 'off' }))));
    }

    stop(): Promise<void> {
        return this.next(() => Promise.resolve(this.become({ is: 'off' })));
    }

    dispose(): void {
        this.changed.dispose();
    }

    private next(what: () => Promise<void>): Promise<void> {
        this.turn = this.turn
            .then(() => this.end())
            .then(what)
            .catch((error: unknown) => this.log.error(String(error)));
        return this.turn;
    }

    private async start(): Promise<void> {
        this.become({ is: 'starting' });
        const launch = settings.launch();
        const client = new QuietClient(
            'localdflash',
            'localdflash',
            // Not in the workspace: Windows would look for the program there first.
            { command: launch.command, args: launch.args, options: { cwd: homedir() } },
            this.options(launch, () => this.ended(client)),
        );
        this.client = client;
        this.nextEdit.listen(client);
        client.onNotification('didChangeStatus', (status: Status) => this.update(client, status));
        try {
            await within(HANDSHAKE_TIMEOUT_MS, client.start());
            this.become({ is: 'running', status: UNKNOWN });
            this.update(client, await client.sendRequest<Status>('localdflash/status', {}));
        } catch (error) {
            this.log.error(String(error));
            this.fail(reason(launch.command, error));
            client.serverProcess?.kill();
        }
    }

    private options({ deadlineMs, nextEdit }: settings.Launch, ended: () => void): LanguageClientOptions {
        return {
            // Only documents on this disk, because the server also reads neighbouring files.
            documentSelector: [{ scheme: 'file' }, { scheme: 'untitled' }, { scheme: 'vscode-notebook-cell' }],
            initializationOptions: { push: false, status: true, deadlineMs, nextEdit },
            outputChannel: this.log,
            initializationFailedHandler: () => false,
            errorHandler: {
                error: () => ({ action: ErrorAction.Continue, handled: true }),
                closed: () => {
                    ended();
                    return { action: CloseAction.DoNotRestart, handled: true };
                },
            },
            middleware: {
                provideInlineCompletionItems: (document, position, context, token, next) => {
                    const asked = context.triggerKind === vscode.InlineCompletionTriggerKind.Invoke;
                    return this.silent(document, asked)
                        ? null
                        : this.nextEdit.watch(document, position, next(document, position, context, token));
                },
            },
        };
    }

    /** Handle a running server that ended unexpectedly; `start` handles a server that never ran. */
    private ended(client: LanguageClient): void {
        if (client !== this.client || this.now.is !== 'running') {
            return;
        }
        if (this.endings.add(Date.now())) {
            this.log.warn('The server ended; it is started again.');
            void this.next(() => this.start());
        } else {
            this.fail(`The server ended ${Endings.MOST} times within three minutes; the log says why.`);
        }
    }

    private async end(): Promise<void> {
        const client = this.client;
        this.client = undefined;
        if (client?.needsStop()) {
            await client.stop(STOP_TIMEOUT_MS).catch((error: unknown) => this.log.warn(String(error)));
        }
    }

    private update(client: LanguageClient, status: Status): void {
        if (client === this.client && this.now.is === 'running') {
            this.become({ is: 'running', status: { ...UNKNOWN, ...status } });
        }
    }

    private become(state: State): void {
        this.now = state;
        this.changed.fire(state);
    }

    private fail(reason: string): void {
        this.log.error(reason);
        this.become({ is: 'failed', reason });
        void this.tell(reason);
    }

    private async tell(reason: string): Promise<void> {
        const actions = { 'Try Again': 'restart', 'It Is Somewhere Else': 'locate', 'Show Log': 'showLog' } as const;
        const titles = Object.keys(actions) as (keyof typeof actions)[];
        const chosen = await vscode.window.showErrorMessage(`localdflash: ${reason}`, ...titles);
        if (chosen) {
            await vscode.commands.executeCommand(`localdflash.${actions[chosen]}`);
        }
    }
}

/** Client that writes errors only to the log, because error messages would appear for each key. */
class QuietClient extends LanguageClient {
    override error(message: string, data?: unknown): void {
        super.error(message, data, false);
    }
}

function reason(command: string, error: unknown): string {
    const text = String(error);
    if (text.includes('ENOENT')) {
        return `"${command}" was not found. Install localdflash, or set localdflash.command to its full path.`;
    }
    if (text.includes('EACCES')) {
        return `"${command}" may not be executed. Set localdflash.command to the program's full path.`;
    }
    return `"${command} lsp" did not start; the log says why.`;
}

async function within(milliseconds: number, work: Promise<void>): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
        timer = setTimeout(() => reject(new Error(`no answer within ${milliseconds / 1000} seconds`)), milliseconds);
    });
    try {
        await Promise.race([work, late]);
    } finally {
        clearTimeout(timer);
    }
}
