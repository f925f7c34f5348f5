/** Language server process: it is restarted when it exits; after repeated exits one message says so. */

import { homedir } from 'node:os';
import * as vscode from 'vscode';
import { CloseAction, ErrorAction, LanguageClient, type LanguageClientOptions } from 'vscode-languageclient/node';
import type { NextEditView } from './next_edit_view';
import * as settings from './settings';
import { RestartLimit, UNKNOWN, type State, type Status } from './state';

const HANDSHAKE_TIMEOUT_MS = 30_000; // Python's imports from a cold disk take seconds
const STOP_TIMEOUT_MS = 2_000;

export class Server implements vscode.Disposable {
    private readonly changed = new vscode.EventEmitter<State>();
    readonly onDidChange = this.changed.event;
    private client: LanguageClient | undefined;
    private restarts = new RestartLimit();
    private queue: Promise<void> = Promise.resolve();
    private current: State = { is: 'off' };

    /** `isSilenced` returns whether a document gets no completions; `isManual`: the user requested one explicitly. */
    constructor(
        private readonly log: vscode.LogOutputChannel,
        private readonly isSilenced: (document: vscode.TextDocument, isManual: boolean) => boolean,
        private readonly nextEdit: NextEditView,
    ) {}

    get state(): State {
        return this.current;
    }

    /** Stop the server, and start it if the settings enable it. Concurrent calls run one after the other. */
    restart(): Promise<void> {
        this.restarts = new RestartLimit();
        return this.enqueue(() => (settings.enabled() ? this.start() : Promise.resolve(this.setState({ is: 'off' }))));
    }

    stop(): Promise<void> {
        return this.enqueue(() => Promise.resolve(this.setState({ is: 'off' })));
    }

    dispose(): void {
        this.changed.dispose();
    }

    /** Stop the server and run a task, after all earlier tasks. */
    private enqueue(task: () => Promise<void>): Promise<void> {
        this.queue = this.queue
            .then(() => this.stopClient())
            .then(task)
            .catch((error: unknown) => this.log.error(String(error)));
        return this.queue;
    }

    private async start(): Promise<void> {
        this.setState({ is: 'starting' });
        const launch = settings.launch();
        const client = new QuietClient(
            'localdflash',
            'localdflash',
            // The working folder is not the workspace, because Windows would look for the program there first.
            { command: launch.command, args: launch.args, options: { cwd: homedir() } },
            this.options(launch, () => this.onExit(client)),
        );
        this.client = client;
        this.nextEdit.listen(client);
        client.onNotification('didChangeStatus', (status: Status) => this.update(client, status));
        try {
            await withTimeout(HANDSHAKE_TIMEOUT_MS, client.start());
            this.setState({ is: 'running', status: UNKNOWN });
            this.update(client, await client.sendRequest<Status>('localdflash/status', {}));
        } catch (error) {
            this.log.error(String(error));
            this.fail(startFailure(launch.command, error));
            client.serverProcess?.kill();
        }
    }

    private options({ deadlineMs, nextEdit }: settings.Launch, onExit: () => void): LanguageClientOptions {
        return {
            // Only documents on this disk, because the server also reads neighbouring files.
            documentSelector: [{ scheme: 'file' }, { scheme: 'untitled' }, { scheme: 'vscode-notebook-cell' }],
            initializationOptions: { push: false, status: true, deadlineMs, nextEdit },
            outputChannel: this.log,
            initializationFailedHandler: () => false,
            errorHandler: {
                error: () => ({ action: ErrorAction.Continue, handled: true }),
                closed: () => {
                    onExit();
                    return { action: CloseAction.DoNotRestart, handled: true };
                },
            },
            middleware: {
                provideInlineCompletionItems: (document, position, context, token, next) => {
                    const isManual = context.triggerKind === vscode.InlineCompletionTriggerKind.Invoke;
                    return this.isSilenced(document, isManual)
                        ? null
                        : this.nextEdit.watch(document, position, next(document, position, context, token));
                },
            },
        };
    }

    /** Restart a running server that exited, or report a failure; `start` handles a server that never ran. */
    private onExit(client: LanguageClient): void {
        if (client !== this.client || this.current.is !== 'running') {
            return;
        }
        if (this.restarts.recordExit(Date.now())) {
            this.log.warn('The server exited and is started again.');
            void this.enqueue(() => this.start());
        } else {
            this.fail(`The server exited ${RestartLimit.MAX_EXITS} times within three minutes; see the log.`);
        }
    }

    private async stopClient(): Promise<void> {
        const client = this.client;
        this.client = undefined;
        if (client?.needsStop()) {
            await client.stop(STOP_TIMEOUT_MS).catch((error: unknown) => this.log.warn(String(error)));
        }
    }

    private update(client: LanguageClient, status: Status): void {
        if (client === this.client && this.current.is === 'running') {
            this.setState({ is: 'running', status: { ...UNKNOWN, ...status } });
        }
    }

    private setState(state: State): void {
        this.current = state;
        this.changed.fire(state);
    }

    private fail(reason: string): void {
        this.log.error(reason);
        this.setState({ is: 'failed', reason });
        void this.showFailure(reason);
    }

    private async showFailure(reason: string): Promise<void> {
        const actions = { 'Try Again': 'restart', 'Set the Path': 'locate', 'Show Log': 'showLog' } as const;
        const titles = Object.keys(actions) as (keyof typeof actions)[];
        const chosen = await vscode.window.showErrorMessage(`localdflash: ${reason}`, ...titles);
        if (chosen) {
            await vscode.commands.executeCommand(`localdflash.${actions[chosen]}`);
        }
    }
}

/** Client that writes errors only to the log, because otherwise each key could show an error message. */
class QuietClient extends LanguageClient {
    override error(message: string, data?: unknown): void {
        super.error(message, data, false);
    }
}

/** Return a message about a server that could not be started. */
function startFailure(command: string, error: unknown): string {
    const text = String(error);
    if (text.includes('ENOENT')) {
        return `"${command}" was not found. Install localdflash, or set localdflash.command to its full path.`;
    }
    if (text.includes('EACCES')) {
        return `"${command}" is not executable. Set localdflash.command to the program's full path.`;
    }
    return `"${command} lsp" did not start; see the log.`;
}

async function withTimeout(milliseconds: number, work: Promise<void>): Promise<void> {
    let timer: NodeJS.Timeout | undefined;
    const timeout = new Promise<never>((_, reject) => {
        timer = setTimeout(() => reject(new Error(`no answer within ${milliseconds / 1000} seconds`)), milliseconds);
    });
    try {
        await Promise.race([work, timeout]);
    } finally {
        clearTimeout(timer);
    }
}
