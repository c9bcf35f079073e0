# Branches, images and what registries are logged in with: the part of the runner
# that comes before the rest of its text.
#
#   runner remote  ROOT INSTALLATION
#   runner branches ROOT INSTALLATION
#   runner tree    ROOT INSTALLATION PROJECT CHECKOUT PATH...
#   runner blobs   ROOT INSTALLATION PROJECT CHECKOUT BYTES
#
# Statuses of a branch: 80 holds work of its own, 81 gone upstream, 82 is no
# fast-forward, 83 on another branch, 84 the host has no room.

# given DIR: what was sent with a request about a branch. Secrets are in files only.
given() {
	mkdir -p "$1" && tar -xpf - -C "$1" && given=$1/branch || return 73
	name=$(cat "$given/name") url=$(cat "$given/url") ref=$(cat "$given/ref") depth=$(cat "$given/depth") || return 64
	case $name in '' | *[!A-Za-z0-9._-]* | [.-]*) return 64 ;; esac
	case $depth in '' | *[!0-9]*) return 64 ;; esac
	case $ref in -*) return 64 ;; esac
	case $url in -* | *[[:cntrl:][:space:]]*) return 64 ;; https://* | http://* | ssh://*) ;; *) return 64 ;; esac
	gitless "$1" && git check-ref-format "refs/heads/$ref" || return 64
	[ ! -f "$given/key" ] || {
		GIT_SSH_COMMAND="ssh -F none -i '$given/key' -o IdentitiesOnly=yes -o IdentityAgent=none -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15"
		GIT_SSH_COMMAND="$GIT_SSH_COMMAND -o StrictHostKeyChecking=yes -o UserKnownHostsFile='$given/known_hosts' -o GlobalKnownHostsFile=none"
		GIT_SSH_VARIANT=ssh
		export GIT_SSH_COMMAND GIT_SSH_VARIANT
	}
}

# gitless DIR: git by no configuration but ours, which lies there: no hook, no
# program, no protocol but those that are named, no prompt.
gitless() {
	conf=$1/gitconfig
	{
		cat <<-'END'
			[core]
				hooksPath = /dev/null
				fsmonitor = false
				askPass = false
				packedGitWindowSize = 32m
				packedGitLimit = 256m
				bigFileThreshold = 32m
			[pack]
				threads = 1
			[protocol]
				allow = never
			[protocol "https"]
				allow = always
			[protocol "ssh"]
				allow = always
			[fetch]
				fsckObjects = true
				unpackLimit = 1
				recurseSubmodules = false
			[fetch "fsck"]
				badTimezone = ignore
				missingSpaceBeforeDate = ignore
				zeroPaddedFilemode = ignore
			[submodule]
				recurse = false
			[gc]
				auto = 0
			[maintenance]
				auto = false
			[http]
				lowSpeedLimit = 100
				lowSpeedTime = 60
			[user]
				name = fuse
				email = fuse@localhost
			[credential]
				helper =
		END
		[ ! -f "$1/branch/plain" ] || printf '[protocol "http"]\n\tallow = always\n'
		[ ! -f "$1/branch/credential" ] || printf '[credential]\n\thelper = "!sh '\''%s'\''"\n' "$1/helper"
	} >"$conf" || return 73
	# It answers for the repository's own server alone: a redirect or a submodule
	# elsewhere gets nothing.
	cat >"$1/helper" <<-END || return 73
		[ "\$1" = get ] || exit 0
		asked=\$(grep -E '^(protocol|host)=' | sort)
		[ "\$asked" != "\$(sort '$1/branch/host')" ] || cat '$1/branch/credential'
	END
	for v in $(env | sed -n 's/^\(GIT_[A-Z_0-9]*\)=.*/\1/p'); do unset "$v"; done
	GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1 GIT_CONFIG_GLOBAL=$conf GIT_TERMINAL_PROMPT=0 GIT_ASKPASS=false SSH_ASKPASS=false HOME=$1
	export GIT_CONFIG_NOSYSTEM GIT_ATTR_NOSYSTEM GIT_CONFIG_GLOBAL GIT_TERMINAL_PROMPT GIT_ASKPASS SSH_ASKPASS HOME
	unset DISPLAY SSH_AUTH_SOCK XDG_CONFIG_HOME
	return 0
}

# through WORK OWN: git on a checkout's data without its configuration, which
# names programs and can be written by others.
through() {
	work=$1 at=$1/.git own=$2
	[ ! -L "$work" ] && [ ! -L "$at" ] && [ -d "$at" ] && [ ! -L "$at/HEAD" ] && [ -f "$at/HEAD" ] || return 65
	[ -z "$(bent "$at")" ] || { say "its repository has links, or objects of another: $(bent "$at")"; return 65; }
	mkdir -p "$at/logs" && rm -rf "$own" && mkdir -p "$own/info" && head -c 4096 "$at/HEAD" >"$own/HEAD" || return 73
	for f in objects refs packed-refs logs index shallow info/exclude; do ln -s "$at/$f" "$own/$f" || return 73; done
	git="git --git-dir=$own --work-tree=$work"
}

# bent REPOSITORY: the first link in what git would write to, and objects that lie
# elsewhere: containers can have made them, and git follows. Single objects, of which
# there may be very many, are never written over and so not looked at.
bent() {
	{
		find "$1/objects" -maxdepth 1 -type l
		find "$1/objects/pack" "$1/objects/info" "$1/refs" "$1/logs" "$1/info" "$1/index" "$1/packed-refs" "$1/shallow" \( -type l -o -path '*/objects/info/alternates' \)
	} 2>/dev/null | head -n 1
}

# level WORK PATH: no part of the path is a link.
level() {
	there=$1 rest=$2/
	while [ -n "$rest" ]; do
		there=$there/${rest%%/*} rest=${rest#*/}
		[ ! -L "$there" ] || return 65
	done
}

# net COMMAND...: what asks the repository's server, killed after its time.
net() { timeout -k 10 "$seconds" "$@" </dev/null; }

# head: what the branch is at the server; nothing if it is gone.
head_of() {
	net git ls-remote -- "$url" "refs/heads/$ref" >"$tmp/heads" || return
	awk -v ref="refs/heads/$ref" '$2 == ref && $1 ~ /^[0-9a-f]+$/ { print $1; exit }' "$tmp/heads"
}

# remote: where the branch is at its server.
remote() {
	seconds=15
	scratch
	given "$tmp/given" || die 64 "not a branch that can be asked for"
	sha=$(head_of) || die 70 "the repository could not be asked"
	[ -n "$sha" ] || die 81 "the branch is gone"
	echo "$sha"
}

# branches: the names of all branches of a repository.
branches() {
	seconds=15
	scratch
	given "$tmp/given" || die 64 "not a repository that can be asked"
	net git ls-remote --heads -- "$url" >"$tmp/heads" || die 70 "the repository could not be asked"
	cut -f2 "$tmp/heads" | head -c 1048576
}

# do_branch: makes the checkout, or has it go forward. A checkout that holds work
# of its own is never touched.
do_branch() {
	new=$root/playgrounds/.new-$op tmp=$root/playgrounds/.new-$op/tmp
	rm -rf "$new" && mkdir -p "$tmp" && given "$new" <"$rec/payload" || return
	rm -f "$rec/payload"
	free=$(df -Pk "$root" | awk 'NR == 2 { print $4 }')
	[ "${free:-0}" -ge 65536 ] || { say "no space left on device: below 64 MiB are free"; return 84; }
	if [ ! -d "$dir" ]; then
		mkdir -p "$new/dir/.fuse" && mv "$new/.fuse/owner.json" "$new/dir/.fuse/" && touch "$new/dir/.fuse/lock" && mv -T "$new/dir" "$dir" || return 73
	fi
	owned || return 65
	umask 022
	[ ! -L "$dir/props" ] && mkdir -p "$dir/props" || return 65
	if [ -e "$dir/props/$name" ] || [ -L "$dir/props/$name" ]; then forward; else obtain; fi
	status=$?
	released || return
	[ "$status" = 0 ] || return "$status"
	[ ! -f "$given/submodules" ] || submodules
	status=$?
	released || return
	return "$status"
}

# still: the playground's containers that can write in a checkout are held, from the
# last look at it until git has written there: what was looked at is what git finds.
# Who they are is kept, for whoever comes if this is cut.
still() {
	[ ! -f "$rec/held" ] && sed -n '/^# /!q; p' "$dir/compose.yml" 2>/dev/null | grep -q '^# fuse\.mount props' || return 0
	ids=$(asked ps -q --no-trunc --filter status=running --filter "label=$I=$inst" --filter "label=fuse.playguard.playground=$playground") || return 69
	[ -n "$ids" ] || return 0
	# shellcheck disable=SC2086 # ids have no spaces
	asked inspect --type container --format '{{$id := .ID}}{{range .Mounts}}{{if .RW}}{{$id}} {{.Source}}{{"\n"}}{{end}}{{end}}' $ids >"$tmp/mounts" || return 69
	awk -v one="$dir/props/" -v other="$(cd "$dir" && pwd -P)/props/" '
		function meets(at) { return index(path, at) == 1 || index(at, path) == 1 }
		NF { id = $1; path = substr($0, length($1) + 2) "/"; if (meets(one) || meets(other)) print id }' "$tmp/mounts" | sort -u >"$tmp/held" || return 73
	[ -s "$tmp/held" ] || return 0
	cp "$tmp/held" "$rec/held" || return 73
	while read -r id; do
		asked pause "$id" >/dev/null || { say "a container that can write in the checkout could not be held still"; return 69; }
	done <"$tmp/held"
}

# released: nobody is held any more.
released() { let_go "$rec" || { say "a container that was held still could not be let go: the next operation tries again"; return 69; }; }

# apart REPOSITORY COMMIT: a repository of our own that knows what that one knows. What
# is fetched comes here first, where no container reaches.
apart() {
	mine=$tmp/apart
	rm -rf "$mine" && git init -q --bare --template= "$mine" && mkdir -p "$mine/objects/info" && printf '%s\n' "$1/objects" >"$mine/objects/info/alternates" || return 73
	[ ! -f "$1/shallow" ] || head -c 1048576 "$1/shallow" >"$mine/shallow" || return 73
	git="git --git-dir=$mine"
	$git update-ref refs/heads/have "$2"
}

# bring REPOSITORY: what was fetched apart comes to where it belongs.
bring() {
	(cd "$mine/objects" && find . -type f ! -path './info/*') >"$tmp/new" || return 73
	while read -r f; do
		[ -e "$1/objects/$f" ] || { mkdir -p "$1/objects/${f%/*}" && mv -T "$mine/objects/$f" "$1/objects/$f"; } || return 73
	done <"$tmp/new"
	if [ -f "$mine/shallow" ]; then mv -T "$mine/shallow" "$1/shallow"; else rm -f "$1/shallow"; fi || return 73
}

# fetch WHAT: into a name of our own, so that what was known of the server stays.
fetch() {
	net $git fetch --progress --no-tags --no-recurse-submodules --update-shallow "$@"
}

# obtain: a new checkout, put into its place when it is whole.
obtain() {
	sha=$(head_of) || return
	[ -n "$sha" ] || { say "branch $ref is not there"; return 81; }
	git init -q --template= "$new/work" && mkdir -p "$new/work/.git/info" && printf 'ref: refs/heads/%s\n' "$ref" >"$new/work/.git/HEAD" || return 73
	through "$new/work" "$tmp/own" || return
	fetch --depth="$depth" -- "$url" "+refs/heads/$ref:refs/remotes/origin/$ref" || return
	$git update-ref "refs/heads/$ref" "refs/remotes/origin/$ref" && $git read-tree -u --reset "refs/heads/$ref" || return
	# For people who work there; we never read it.
	git config -f "$new/work/.git/config" remote.origin.url "$url" && remembers "$new/work" &&
		git config -f "$new/work/.git/config" remote.origin.fetch "+refs/heads/*:refs/remotes/origin/*" &&
		git config -f "$new/work/.git/config" "branch.$ref.remote" origin &&
		git config -f "$new/work/.git/config" "branch.$ref.merge" "refs/heads/$ref" || return 73
	mv -T "$new/work" "$dir/props/$name" || return 73
}

# remembers WORK: git writes down there where each name came from, for as long as it is
# there: of tags that is how those that were fetched are told from a person's own.
remembers() {
	git config -f "$1/.git/config" core.logAllRefUpdates always &&
		git config -f "$1/.git/config" 'gc.refs/tags/*.reflogExpire' never && git config -f "$1/.git/config" 'gc.refs/tags/*.reflogExpireUnreachable' never
}

unworked='repository=yes
head=yes
busy=
changed=0
unpushed=0
stashes=0'

# untouched: the checkout holds nothing that exists nowhere else. A look that
# fails says that it does.
untouched() {
	found=$(look_git "$project" "$name" 2>&1) && [ "$found" = "$unworked" ] && return 0
	say "the checkout holds work of its own: $(printf '%s' "$found" | tr '\n' ' ')"
	return 80
}

# forward: a clean checkout goes to where its branch is, if that is ahead of it.
forward() {
	untouched || return
	through "$dir/props/$name" "$tmp/own" || return
	[ "$(cat "$own/HEAD")" = "ref: refs/heads/$ref" ] || { say "the checkout is not on branch $ref"; return 83; }
	have=$($git rev-parse -q --verify "refs/heads/$ref^{commit}") || return 80
	sha=$(head_of) || return
	[ -n "$sha" ] || { say "branch $ref is gone upstream"; return 81; }
	[ "$sha" != "$have" ] || return 0
	apart "$at" "$have" || return
	fetch --depth="$depth" -- "$url" "+refs/heads/$ref:refs/fuse/seen" || return
	for more in 10 50; do
		ahead || fetch --deepen=$((depth * more)) -- "$url" "+refs/heads/$ref:refs/fuse/seen" || return
	done
	rewritten=0
	ahead || {
		[ -f "$given/force" ] || { say "branch $ref was rewritten upstream: $sha does not follow $have"; return 82; }
		rewritten=1
	}
	links "$have" | sort >"$tmp/had" && links refs/fuse/seen | cut -d' ' -f2 >"$tmp/has" && seen=$($git rev-parse --verify 'refs/fuse/seen^{commit}') || return
	# Somebody may have begun to work there while this was fetched.
	still && untouched || return
	through "$dir/props/$name" "$tmp/own" && bring "$at" && $git update-ref refs/fuse/seen "$seen" || return
	[ "$rewritten" = 0 ] || $git update-ref "refs/fuse/before-$(date +%s)" "$have" || return 73
	clear_of || return
	roomy || return
	# -m refuses to write over what is not committed.
	$git read-tree -u -m "$have" refs/fuse/seen || { untouched; return 80; }
	$git update-ref -m "fuse: forward" "refs/heads/$ref" refs/fuse/seen "$have" && $git update-ref "refs/remotes/origin/$ref" refs/fuse/seen || return
	while read -r _ path; do # submodules that the branch has no more, as clean as the rest
		grep -qxF "$path" "$tmp/has" || ! level "$dir/props/$name" "${path:?}" || ! at_rest "$there" || rm -rf "$there"
	done <"$tmp/had"
}

# at_rest WORK: a submodule that holds nothing that exists nowhere else.
at_rest() { [ ! -e "$1/.git" ] || [ "$(look_tree "$1" "$tmp/repository.module" 2>/dev/null)" = "$unworked" ]; }

# clear_of: what the branch brings lies where nothing is. Git would write over
# what it ignores.
clear_of() {
	$git ls-files --others -z >"$tmp/all" && tr '\n\0' '\001\n' <"$tmp/all" >"$tmp/others" &&
		$git ls-tree -r -z --name-only refs/fuse/seen >"$tmp/all" && tr '\n\0' '\001\n' <"$tmp/all" >"$tmp/theirs" || return
	way=$(awk 'NR == FNR { their[$0]; p = $0; while (sub(/\/[^\/]*$/, "", p)) over[p]; next }
		{ sub(/\/$/, ""); p = $0; hit = (p in their) || (p in over)
		  while (!hit && sub(/\/[^\/]*$/, "", p)) hit = p in their
		  if (hit) { print; exit } }' "$tmp/theirs" "$tmp/others") || return
	[ -z "$way" ] || { say "the checkout holds work of its own: $way, which git ignores, is where the branch has a file now"; return 80; }
}

# roomy: what changes fits on the disk. A checkout that is half written would
# count as work.
roomy() {
	$git diff-tree -r "$have" refs/fuse/seen >"$tmp/changes" &&
		awk '$2 ~ /^1[02]/ { print $4 }' "$tmp/changes" | $git cat-file --batch-check='%(objectsize)' >"$tmp/sizes" || return
	need=$(awk '{ n += int($1 / 4096) + 2 } END { printf "%.0f", n * 4 + 16384 }' "$tmp/sizes")
	free=$(df -Pk "$dir" | awk 'NR == 2 { print $4 }')
	[ "${free:-0}" -ge "$need" ] || { say "no space left on device: the branch needs $need KiB, and $free KiB are free"; return 84; }
}

ahead() { $git merge-base --is-ancestor "$have" refs/fuse/seen 2>/dev/null; }

# submodules: each a checkout of its own at the commit that the branch names, in
# its place. Those of submodules are left out.
submodules() {
	super=$dir/props/$name
	through "$super" "$tmp/own" || return
	links "refs/heads/$ref" >"$tmp/links" || return
	$git cat-file blob "refs/heads/$ref:.gitmodules" >"$tmp/gitmodules" 2>/dev/null || : >"$tmp/gitmodules"
	while read -r want path; do
		case /$path/ in */../* | */./* | *//* | */.git/*) say "a submodule lies at $path"; return 64 ;; esac
		key=$(git config -f "$tmp/gitmodules" --get-regexp '^submodule\..*\.path$' | awk -v p="$path" '$2 == p { print $1; exit }')
		from=$(git config -f "$tmp/gitmodules" --get "${key%.path}.url") || { say "submodule $path has no address"; return 64; }
		module "$want" "$path" "$(beside "$from")" || return
	done <"$tmp/links"
}

# links COMMIT: the submodules that it names, those of plain paths.
links() {
	$git ls-tree -r -z "$1" >"$tmp/all" || return
	tr '\0' '\n' <"$tmp/all" | awk -F'\t' '{ split($1, f, " ") } f[1] == "160000" && $2 ~ /^[A-Za-z0-9._\/-]+$/ { print f[3], $2 }'
}

# beside URL: one that begins with ./ or ../ is relative to the repository's.
beside() {
	to=$1 base=${url%/}
	case $to in
	./* | ../*)
		while :; do
			case $to in
			../*) base=${base%/*} to=${to#../} ;;
			./*) to=${to#./} ;;
			*) break ;;
			esac
		done
		to=$base/$to
		;;
	esac
	printf '%s' "$to"
}

# module COMMIT PATH URL
module() {
	case $3 in -* | *[[:cntrl:][:space:]]*) return 64 ;; https://* | ssh://* | http://*) ;; *) say "submodule $2 is not at an https or ssh address"; return 64 ;; esac
	level "$super" "$2" || return
	if [ -d "$there/.git" ]; then
		through "$there" "$tmp/module" || return
		have=$($git rev-parse -q --verify HEAD) || return 80
		[ "$have" != "$1" ] || return 0
		apart "$at" "$have" && fetch --depth=1 -- "$3" "+$1:refs/fuse/seen" && still || return
		at_rest "$there" || { say "the checkout holds work of its own in submodule $2"; return 80; }
		through "$there" "$tmp/module" && bring "$at" && $git read-tree -u -m "$have" "$1" && $git rev-parse --verify "$1^{commit}" >"$there/.git/HEAD" &&
			$git update-ref refs/remotes/origin/fuse "$1"
		status=$?
		released || return
		return "$status"
	fi
	rm -rf "$new/module" && git init -q --template= "$new/module" && mkdir -p "$new/module/.git/info" && through "$new/module" "$tmp/module" &&
		fetch --depth=1 -- "$3" "+$1:refs/remotes/origin/fuse" && echo "$1" >"$new/module/.git/HEAD" && through "$new/module" "$tmp/module" &&
		$git read-tree -u --reset "$1" && git config -f "$new/module/.git/config" remote.origin.url "$3" && remembers "$new/module" || return
	still && level "$super" "$2" || return
	rmdir "$there" 2>/dev/null
	mkdir -p "${there%/*}" && mv -T "$new/module" "$there" || return 73
	released
}

# checkout PROJECT NAME: git on it, for those who only read.
checkout() {
	word "$1"; word "$2"
	scratch
	gitless "$tmp" && through "$root/playgrounds/$1/props/$2" "$tmp/own" || die 66 "there is no checkout"
}

# tree PROJECT CHECKOUT PATH...: the commit, and what it has at these paths.
tree() {
	checkout "$1" "$2"
	shift 2
	$git rev-parse --verify 'HEAD^{commit}' && [ $# -gt 0 ] && $git ls-tree -z -l --full-tree HEAD -- "$@" | head -c 1048576
}

# blobs PROJECT CHECKOUT BYTES: the contents of those that are named on standard
# input, as many bytes as that.
blobs() {
	number "$3"
	checkout "$1" "$2"
	$git cat-file --batch | head -c "$3"
}

# --- images ---

# do_pull: the images that the payload lists, one after the other. What was left
# of a pull goes on where it was cut.
do_pull() {
	new=$root/playgrounds/.new-$op
	rm -rf "$new" && mkdir "$new" && tar -xpf "$rec/payload" -C "$new" && [ -f "$new/images" ] || return 73
	rm -f "$rec/payload"
	logins "$new"
	all=$(wc -l <"$new/images") n=0 late=$(($(ticks) + seconds))
	while read -r when image; do
		n=$((n + 1))
		case $image in -* | *[[:cntrl:][:space:]]*) return 64 ;; esac
		if [ "$when" = missing ] && asked image inspect --format '{{.Id}}' "$image" >/dev/null 2>&1; then
			say "image $n of $all is there: $image"
			continue
		fi
		say "image $n of $all is pulled: $image"
		left=$((late - $(ticks)))
		[ "$left" -gt 0 ] || { say "the time for pulls is over before $image"; return 124; }
		timeout -k 10 "$left" docker pull "$image" </dev/null >&2 || return
	done <"$new/images"
}

# do_mark: what the owner marker says is brought up to date.
do_mark() {
	new=$root/playgrounds/.new-$op
	rm -rf "$new" && mkdir "$new" && tar -xpf "$rec/payload" -C "$new" && [ -f "$new/.fuse/owner.json" ] || return 73
	owned && [ ! -L "$dir/.fuse" ] || return 65
	mv -T "$new/.fuse/owner.json" "$dir/.fuse/owner.json" || return 73
}

# do_auth: what the registries of the project are logged in with, or that they
# are not.
do_auth() {
	new=$root/playgrounds/.new-$op
	rm -rf "$new" && mkdir "$new" && tar -xpf "$rec/payload" -C "$new" || return 73
	owned || return 65
	[ ! -L "$dir/docker-config" ] && rm -rf "$dir/docker-config" || return 73
	[ ! -d "$new/docker-config" ] || mv -T "$new/docker-config" "$dir/docker-config" || return 73
}

