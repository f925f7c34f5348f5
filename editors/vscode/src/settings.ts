/** Settings of the extension; every function reads their current values. */

import { homedir } from 'node:os';
import * as path from 'node:path';
import * as vscode from 'vscode';
import { isOn } from './state';

const SECTION = 'localdflash';

/** Settings that take effect when the server starts. */
const AT_START = ['command', 'arguments', 'pair', 'deadlineMs', 'nextEdit'];

export interface Launch {
    command: string;
    args: string[];
    deadlineMs: number;
    nextEdit: boolean;
}

/** Return the command line and the options with which to start the server. */
export function launch(): Launch {
    const settings = vscode.workspace.getConfiguration(SECTION);
    const chosen = pair();
    return {
        command: expandHome(settings.get<string>('command', '').trim() || 'localdflash'),
        args: ['lsp', ...(chosen ? ['--pair', expandHome(chosen)] : []), ...settings.get<string[]>('arguments', [])],
        deadlineMs: settings.get<number>('deadlineMs', 350),
        nextEdit: settings.get<boolean>('nextEdit', true),
    };
}

/** Return the id or file of the model pair; empty: the default of localdflash's own settings. */
export function pair(): string {
    return vscode.workspace.getConfiguration(SECTION).get<string>('pair', '').trim();
}

export async function setPair(chosen: string): Promise<void> {
    const settings = vscode.workspace.getConfiguration(SECTION);
    await settings.update('pair', chosen || undefined, vscode.ConfigurationTarget.Global);
}

/** Open the settings: the remote ones in an SSH, WSL or container window, because the server runs there. */
export async function open(query: string): Promise<void> {
    const which = vscode.env.remoteName ? 'openRemoteSettings' : 'openSettings';
    await vscode.commands.executeCommand(`workbench.action.${which}`, { query });
}

export function enabled(): boolean {
    return vscode.workspace.getConfiguration(SECTION).get<boolean>('enabled', true);
}

export function enabledFor(document: vscode.TextDocument): boolean {
    const settings = vscode.workspace.getConfiguration(SECTION, document);
    return isOn(settings.get<Record<string, unknown>>('languages', {}), document.languageId);
}

/** Turn completions on or off: in the workspace settings if they have a value, else in the user's. */
export async function toggle(): Promise<void> {
    const settings = vscode.workspace.getConfiguration(SECTION);
    await settings.update('enabled', !enabled(), target(settings.inspect('enabled')?.workspaceValue !== undefined));
}

/** Turn completions on or off for a document's language, in the settings that have a value for it. */
export async function toggleLanguage(document: vscode.TextDocument): Promise<void> {
    const settings = vscode.workspace.getConfiguration(SECTION, document);
    const values = settings.inspect<Record<string, boolean>>('languages');
    const inWorkspace = values?.workspaceValue?.[document.languageId] !== undefined;
    const before = (inWorkspace ? values?.workspaceValue : values?.globalValue) ?? {};
    const after = { ...before, [document.languageId]: !enabledFor(document) };
    await settings.update('languages', after, target(inWorkspace));
}

/** Return whether a change of settings requires a restart of the server. */
export function needsRestart(change: vscode.ConfigurationChangeEvent): boolean {
    return [...AT_START, 'enabled'].some((name) => change.affectsConfiguration(`${SECTION}.${name}`));
}

function target(inWorkspace: boolean): vscode.ConfigurationTarget {
    return inWorkspace ? vscode.ConfigurationTarget.Workspace : vscode.ConfigurationTarget.Global;
}

function expandHome(file: string): string {
    return file.startsWith('~/') ? path.join(homedir(), file.slice(2)) : file;
}
