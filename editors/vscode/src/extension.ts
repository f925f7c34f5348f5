/** Entry point of the extension: starts the window's language server, the status bar item and the commands. */

import * as vscode from 'vscode';
import * as models from './models';
import { NextEditView } from './next_edit_view';
import { Server } from './server';
import * as settings from './settings';
import { Snooze } from './snooze';
import { present, type State } from './state';
import { StatusBar } from './status_bar';

const WALKTHROUGH = 'localdflash.localdflash#start';

let server: Server | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
    const log = vscode.window.createOutputChannel('localdflash', { log: true });
    const snooze = new Snooze();
    const isSilenced = (document: vscode.TextDocument, isManual = false): boolean =>
        !settings.enabledFor(document) || (snooze.until !== undefined && !isManual);
    const nextEdit = new NextEditView(isSilenced);
    const started = (server = new Server(log, isSilenced, nextEdit));
    context.subscriptions.push(
        log,
        snooze,
        nextEdit,
        started,
        new StatusBar(started, snooze),
        started.onDidChange(setContexts),
        snooze.onDidChange(() => nextEdit.update()),
        vscode.workspace.onDidChangeConfiguration((change) => settings.needsRestart(change) && started.restart()),
        ...Object.entries(commands(started, snooze, log)).map(([name, run]) =>
            vscode.commands.registerCommand(`localdflash.${name}`, run),
        ),
    );
    await started.restart();
}

export async function deactivate(): Promise<void> {
    await server?.stop();
}

function commands(server: Server, snooze: Snooze, log: vscode.LogOutputChannel): Record<string, () => unknown> {
    const run = vscode.commands.executeCommand;
    return {
        menu: () => menu(server, snooze),
        trigger: () => run('editor.action.inlineSuggest.trigger'),
        acceptWord: () => run('editor.action.inlineSuggest.acceptNextWord'),
        acceptLine: () => run('editor.action.inlineSuggest.acceptNextLine'),
        toggle: () => settings.toggle(),
        toggleLanguage: () => {
            const editor = vscode.window.activeTextEditor;
            return editor && settings.toggleLanguage(editor.document);
        },
        snooze: () => snooze.begin(),
        wake: () => snooze.wake(),
        chooseModel: () => models.choose(log),
        restart: () => server.restart(),
        showLog: () => log.show(),
        locate: () => settings.open('localdflash.command'),
        openSettings: () => settings.open('@ext:localdflash.localdflash'),
        openWalkthrough: () => openWalkthrough(server),
    };
}

/** Set the context keys on which walkthrough steps and key bindings depend. */
function setContexts(state: State): void {
    const status = state.is === 'running' ? state.status : undefined;
    const contexts = {
        running: status !== undefined,
        shown: (status?.shown ?? 0) > 0,
        accepted: (status?.accepted ?? 0) > 0,
    };
    for (const [name, value] of Object.entries(contexts)) {
        void vscode.commands.executeCommand('setContext', `localdflash.${name}`, value);
    }
}

/** Open the walkthrough with all contexts false, then set them: VS Code ticks a step when its context changes. */
async function openWalkthrough(server: Server): Promise<void> {
    setContexts({ is: 'off' });
    await vscode.commands.executeCommand('workbench.action.openWalkthrough', WALKTHROUGH, false);
    setContexts(server.state);
}

async function menu(server: Server, snooze: Snooze): Promise<void> {
    const document = vscode.window.activeTextEditor?.document;
    const on = settings.enabled();
    const items = [{ label: on ? '$(circle-slash) Turn completions off' : '$(zap) Turn completions on', command: 'toggle' }];
    if (on && document) {
        const turn = settings.enabledFor(document) ? 'off' : 'on';
        items.push({ label: `$(code) Turn completions ${turn} for ${document.languageId}`, command: 'toggleLanguage' });
    }
    if (on) {
        const end = { label: '$(bell) End the snooze', command: 'wake' };
        items.push(snooze.until ? end : { label: '$(bell-slash) Snooze', command: 'snooze' });
    }
    items.push(
        { label: `$(server) Choose the model (now: ${settings.pair() || 'default'})`, command: 'chooseModel' },
        { label: '$(debug-restart) Restart the server', command: 'restart' },
        { label: '$(output) Show the log', command: 'showLog' },
        { label: '$(gear) All settings', command: 'openSettings' },
        { label: '$(book) First steps', command: 'openWalkthrough' },
    );
    const { level, lines } = present(server.state);
    const title = level === 'normal' ? 'localdflash' : `localdflash: ${lines[0]}`;
    const chosen = await vscode.window.showQuickPick(items, { title, placeHolder: 'Choose an action' });
    if (chosen) {
        await vscode.commands.executeCommand(`localdflash.${chosen.command}`);
    }
}
