# Stand-ins for the commands of a script that starts a training: they record their arguments, and do nothing.
#
#   python3 -m verl.trainer.main_ppo …     recorded; prints $__ajet_output, whose text nobody else prints
#   nvidia-smi, date, git, anything else   the same
#   dirname, sed, wc, …                    run, unless their input holds $__ajet_output: then they print it too
#   bash x.sh, srun bash -c '…'            read as this script is
#   cd into a folder that is not there     makes it, below $__ajet_root
#
# Every bash reads this file first (BASH_ENV). sandboxed.py writes the settings above it:
# __ajet_bin, __ajet_bash, __ajet_records, __ajet_root, __ajet_output, __ajet_status, __ajet_takes_branches,
# __ajet_has_files.
#
# What a stand-in prints is recorded too, as a command without words: the script depends on it, perhaps.
#
# The trap DEBUG sees each command before it runs. It covers what PATH does not: programs that are named by a path,
# output that is sent into folders that are not here, and conditions on what a stand-in printed. It runs no regex in
# the script's own shell, whose BASH_REMATCH would change.
#
# Not covered: programs behind `exec` in a string, redirections of whole blocks into folders that are not here.

__ajet_unknown=791004 # in $__ajet_output of all runs but the one with small numbers

# A command may end before a program in front of it in a pipe has written.
trap '' PIPE

__ajet_is_unknown() {
    [[ "$*" == *"$__ajet_unknown"* ]]
}

__ajet_record() { # NAME ARGUMENT…, or nothing
    printf '%s\0' "$@" >"$__ajet_records/${EPOCHREALTIME-$SECONDS}.$BASHPID" 2>/dev/null
}

__ajet_print_unknown() {
    __ajet_record
    printf '%s\n' "$__ajet_output"
    return "$__ajet_status"
}

__ajet_run() { # NAME ARGUMENT…
    local __ajet_in=1 IFS=$' \t\n' name=${1##*/}
    shift
    case $name in
    bash | sh | dash | zsh | ksh) __ajet_shell "$@" ;;
    env) __ajet_env "$@" ;;
    which) command -v "$@" ;;
    mkdir | touch | cp | ln | chmod)
        "/usr/bin/$name" "$@" 2>/dev/null
        return 0
        ;;
    tee) /usr/bin/cat ;;
    sleep)
        __ajet_record # a loop that waits for something ends after so many
        return 0
        ;;
    rm | mv | rmdir | clear | sync | stty | tput | reset | pkill | killall | module | true | ulimit) return 0 ;;
    false) return 1 ;;
    dirname | basename | seq | expr | realpath | readlink | mktemp | uname) __ajet_text "" "$name" "$@" ;;
    cat | grep | egrep | sed | awk | gawk | head | tail | wc | sort | uniq | tr | cut | rev | paste | xargs | bc | jq | column | fold | tac | nl)
        __ajet_text reads "$name" "$@"
        ;;
    python* | git | pip* | conda | mamba | apt* | wget | curl)
        __ajet_record "$name" "$@"
        __ajet_print_unknown
        ;;
    *) __ajet_other "$name" "$@" ;;
    esac
}

__ajet_text() { # reads|"" NAME ARGUMENT…
    local reads=$1 name=$2 argument input="" output status
    shift 2
    for argument; do
        [[ -f $argument ]] && reads=""
        if [[ $argument == /proc/* || $argument == /sys/* || $argument == /etc/* ]]; then
            __ajet_print_unknown
            return
        fi
    done
    [[ -n $reads ]] && IFS= read -r -d '' input
    # A count has no trace of the unknown values that it counts.
    if __ajet_is_unknown "$input" "$@" || [[ ! -x /usr/bin/$name || $name$input == wc*79[01][0-9][0-9][0-9]* ]]; then
        __ajet_print_unknown
        return
    fi
    case $name in realpath) set -- -m "$@" ;; readlink) set -- -m "${@: -1}" ;; esac
    output=$(printf '%s' "$input" | "/usr/bin/$name" "$@" 2>/dev/null; printf 'x%s' "${PIPESTATUS[1]}")
    status=${output##*x} output=${output%x*}
    case $name in
    grep | egrep | expr) [[ $status -le 1 ]] ;; # 1 is an answer
    *) [[ $status == 0 ]] ;;
    esac || { __ajet_print_unknown; return; } # such as a file that is not here
    printf '%s' "$output"
    return "$status"
}

__ajet_env() {
    while [[ ${1-} == -* || ${1-} == [A-Za-z_]*=* ]]; do
        case $1 in
        -u) shift ;;
        *=*) export "${1?}" ;;
        esac
        shift
    done
    if [[ $# == 0 ]]; then __ajet_print_unknown; else __ajet_run "$@"; fi
}

# Records the command; a shell, a script or a command line among its arguments is read too.
__ajet_other() {
    local number argument
    __ajet_record "$@"
    for ((number = 2; number <= $#; number++)); do
        argument=${!number}
        argument=${argument#--wrap=} # of sbatch: a command line
        if [[ ${argument##*/} == @(bash|sh|zsh|dash) ]]; then
            __ajet_shell "${@:number+1}"
            return
        elif [[ $argument == *.@(sh|bash|sbatch|slurm) && -f $argument ]]; then
            __ajet_shell "${@:number}"
            return
        elif [[ $argument == *@(python|bash|.sh)*[[:space:]]* || $argument == *[[:space:]]*@(python|bash|.sh)* ]] &&
            [[ $1 == @(ssh|pdsh|docker|podman|singularity|apptainer|kubectl|tmux|screen|srun|sbatch|ray|su|parallel) ]]; then
            __ajet_shell -c "$argument"
            return
        fi
    done
    __ajet_print_unknown
}

# Prints the path below $__ajet_root of a script that is here, and any other name unchanged.
__ajet_file() {
    if [[ $1 == /* && -f $__ajet_root$1 ]]; then printf '%s' "$__ajet_root$1"; else printf '%s' "$1"; fi
}

__ajet_shell() {
    local options=()
    while [[ ${1-} == -* || ${1-} == +* ]]; do
        case $1 in
        -c | -?c | -??c)
            options+=(-c)
            shift
            break
            ;;
        -s) options+=(-s) ;;
        --) ;;
        -o | +o | -O | +O) shift ;;
        esac
        shift
    done
    [[ ${__ajet_depth-0} -lt 10 ]] || return 1
    [[ $# == 0 || ${options[*]-} == *-[cs]* ]] || set -- "$(__ajet_file "$1")" "${@:2}"
    __ajet_depth=$((${__ajet_depth-0} + 1)) "$__ajet_bash" "${options[@]}" "$@"
}

# A program named by a path: a script that is here, or else the stand-in of that name.
__ajet_by_path() {
    local __ajet_in=1 path line=""
    path=$(__ajet_file "$1")
    shift
    if [[ -f $path && $path == "$__ajet_root"/* ]]; then
        read -r line <"$path"
        if [[ $line == *python* ]]; then __ajet_run python3 "$path" "$@"; else __ajet_run bash "$path" "$@"; fi
    else
        __ajet_run "$path" "$@"
    fi
}

command_not_found_handle() {
    __ajet_run "$@"
}

# ---- builtins that would fail, or find this machine's files ----

__ajet_folder() { # prints the folder that stands for $1
    case $1 in
    "$__ajet_root"* | [!/]*) printf '%s' "$1" ;;
    *) printf '%s' "$__ajet_root$1" ;;
    esac
}

cd() {
    local __ajet_in=1 folder
    while [[ ${1-} == -[LPe@] || ${1-} == -- ]]; do shift; done
    folder=${1-$HOME}
    [[ $folder == - ]] && { builtin cd - 2>/dev/null; return 0; }
    [[ -z $folder ]] && return 0
    folder=$(__ajet_folder "$folder")
    /usr/bin/mkdir -p -- "$folder" 2>/dev/null
    builtin cd -- "$folder" 2>/dev/null
    return 0
}

pushd() {
    local __ajet_in=1 folder
    folder=$(__ajet_folder "${1-.}")
    /usr/bin/mkdir -p -- "$folder" 2>/dev/null
    builtin pushd "$folder" >/dev/null 2>&1
    return 0
}

popd() {
    builtin popd >/dev/null 2>&1
    return 0
}

source() {
    set -- "$(__ajet_file "${1-}")" "${@:2}"
    if [[ -r ${1-} && ($1 == "$__ajet_root"* || $1 != /* || $1 == /dev/*) ]]; then
        builtin source "$@"
    fi
}

function . { source "$@"; }

kill() { return 0; }
ulimit() { return 0; }

function [ {
    local __ajet_in=1
    if [[ -n $__ajet_takes_branches && $1 != -[nz] ]] && __ajet_is_unknown "$@"; then return 0; fi
    if [[ -n $__ajet_has_files ]]; then
        [[ $1 == -[defrswx] ]] && return 0
        [[ $1 == ! && $2 == -[defrswx] ]] && return 1
    fi
    builtin [ "$@"
}

test() { [ "$@" ]; }

# ---- what PATH does not cover ----

__ajet_debug() {
    [[ -n ${__ajet_in-} ]] && return 0
    local __ajet_in=1 IFS=$' \t\n' __ajet_command=$BASH_COMMAND __ajet_new
    PATH=$__ajet_bin
    shopt -s extdebug # set before the script begins, it would ask for bash's debugger
    [[ $__ajet_status != 0 || -n $__ajet_takes_branches ]] && set +eu
    case $__ajet_command in
    '[[ '* | '(('* | 'case '*)
        [[ -z $__ajet_takes_branches ]] || ! __ajet_names_unknown || return 1
        return 0
        ;;
    *[/\>]* | '$'* | '"$'* | *'="$'* | *'=$'*) ;;
    *) return 0 ;;
    esac
    __ajet_new=$(__ajet_rewritten) || return 0
    eval "$__ajet_new"
    return 1
}

# True if a variable that the condition names holds what a stand-in printed.
__ajet_names_unknown() {
    local rest=$__ajet_command name
    case $rest in '[[ -'[nz]' '*) return 1 ;; esac
    while [[ $rest == *[A-Za-z_]* ]]; do
        rest=${rest#"${rest%%[A-Za-z_]*}"}
        name=${rest%%[!A-Za-z0-9_]*}
        rest=${rest#"$name"}
        [[ ${!name-} == *"$__ajet_unknown"* ]] && return 0
    done
    return 1
}

# Prints the command with a stand-in in place of a program that is named by a path, and /dev/null in
# place of a file whose folder cannot be made. Fails if the command may run as it stands.
__ajet_rewritten() {
    local rest=$__ajet_command prefix="" first program end="" changed="" target file
    local value='([^][:space:]"'"'"'()$`]|\]|"[^"]*"|'"'[^']*'"'|\$\{[^}]*\}|\$[A-Za-z0-9_]+|\$\([^()]*\))*'
    local assignment="^([A-Za-z_][A-Za-z0-9_]*\\+?=${value}[[:space:]]+)(.*)\$"
    set +eu
    while [[ $rest =~ $assignment ]]; do
        prefix+=${BASH_REMATCH[1]} rest=${BASH_REMATCH[3]}
    done
    [[ $rest =~ ^[A-Za-z_][A-Za-z0-9_]*(\[[^]]*\])?\+?= ]] && return 1
    if [[ $rest == exec\ [!\<\>0-9\&]* ]]; then rest=${rest#exec } end="; exit"; fi
    first=${rest%%[[:space:]]*} program=""
    case $first in
    *[\(\`\<\>]*) ;;
    *\$*) eval "program=$first" 2>/dev/null ;;
    *) program=${first//[\"\']/} ;;
    esac
    program=${program%% *}
    if [[ $program == */* && $program != "$__ajet_bin"/* && $program != "$__ajet_bash" ]]; then
        rest="__ajet_by_path $rest" changed=1
    fi
    file='[[:space:]](&|[0-9])?>>?\|?[[:space:]]?([^[:space:]&>][^[:space:]]*)'
    if [[ $rest =~ $file ]]; then
        target=${BASH_REMATCH[2]}
        eval "file=$target" 2>/dev/null
        if [[ $file == */* ]]; then
            /usr/bin/mkdir -p -- "${file%/*}" 2>/dev/null
            if [[ ! -w ${file%/*} && $file != /dev/* ]]; then
                rest=${rest//"$target"/\/dev\/null} changed=1
            fi
        fi
    fi
    [[ -n $changed ]] && printf '%s' "$prefix$rest$end"
}

set -o functrace
trap __ajet_debug DEBUG
