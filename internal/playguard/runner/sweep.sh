# The sweep's part of the runner; it is put before the rest of it.
#
#   runner start ROOT INSTALLATION EPOCH OP PROJECT PLAYGROUND sweep|restore|purge SECONDS
#   runner inventory ROOT INSTALLATION
#
# Exit status 76: a checkout holds work that is nowhere else.

# do_sweep: an orphan is taken out of use: its containers and networks go, by our
# labels, and its directory is set aside. Volumes stay, those without a name too.
do_sweep() {
	swept=$root/swept/$inst/$project
	[ -d "$dir" ] && owned || return 65
	[ ! -e "$swept" ] || { say "$swept is there already"; return 73; }
	spotless "$root" || return
	# shellcheck disable=SC2154 # of the rest
	mine="--filter label=$I=$inst --filter label=fuse.playguard.playground=$playground --filter label=com.docker.compose.project=$project"
	# shellcheck disable=SC2086 # words of our own
	ids=$(asked ps -aq --no-trunc $mine) || return 69
	# shellcheck disable=SC2086,SC2154 # ids have no spaces
	[ -z "$ids" ] || { timeout -k 10 "$seconds" docker stop $ids && timeout -k 10 "$seconds" docker rm $ids; } >/dev/null || return
	nets=$(asked network ls -q --filter "label=com.docker.compose.project=$project" --filter "label=$I=$inst") || return 69
	# shellcheck disable=SC2086 # ids have no spaces
	[ -z "$nets" ] || asked network rm $nets >/dev/null || return
	[ ! -L "$dir/.fuse" ] && rm -f "$dir/.fuse/aside" || return 65 # a container may have made a link of it
	mkdir -p "$root/swept/$inst" && date +%s >"$dir/.fuse/aside" && mv -T "$dir" "$swept" || return 73
}

# do_restore: what was set aside is where it was. Its containers are not made again.
do_restore() {
	swept=$root/swept/$inst/$project
	if [ -d "$dir" ] && [ ! -e "$swept" ]; then owned; return; fi
	[ ! -e "$dir" ] && (dir=$swept && owned) || return 65
	mv -T "$swept" "$dir" && rm -f "$dir/.fuse/aside" || return 73
}

# do_purge: what was set aside goes, unless somebody left work in it.
do_purge() {
	swept=$root/swept/$inst/$project
	[ -e "$swept" ] || return 0
	(dir=$swept && owned) || return 65
	unmounted "$swept" || return
	view=$rec/view
	mkdir -p "$view/playgrounds" && ln -sfn "$swept" "$view/playgrounds/$project" || return 73
	spotless "$view" || return
	# What is work there stays, as in outdated. It goes first: without what was set
	# aside nobody would come back for it.
	kept=$root/aside/$project
	[ ! -d "$kept" ] || [ -n "$(find "$kept" -name .git -prune -print 2>&1 | head -n 1)" ] || rm -rf "$kept" || return 73
	rm -rf "$view" "$swept" || return 73
}

# spotless BASE: no checkout of the project below it holds work that is nowhere
# else; one that cannot be looked at may.
spotless() (
	root=$1 tmp=$rec/look
	mkdir -p "$tmp" || exit 73
	props=$root/playgrounds/$project/props
	[ -e "$props" ] || [ -L "$props" ] || exit 0
	[ -d "$props" ] && [ ! -L "$props" ] && ls -A "$props" >/dev/null 2>&1 || exit 76
	for c in $(look_checkouts "$project"); do
		look_git "$project" "$c" >"$tmp/git" 2>/dev/null || exit 76
		for want in repository=yes head=yes busy= changed=0 unpushed=0 stashes=0; do grep -qxF "$want" "$tmp/git" || exit 76; done
	done
)

# inventory: who has playgrounds on this host, besides this installation, and what
# this one set aside: how many seconds ago, and what was last done with it.
inventory() {
	for f in "$root/installations"/*; do
		case ${f##*/} in *[!a-z0-9]*) continue ;; esac
		[ -f "$f" ] || continue
		[ "${f##*/}" = "$inst" ] || grep -qs "\"installation\": *\"${f##*/}\"" "$root/playgrounds"/*/.fuse/owner.json || continue
		echo "installation ${f##*/}"
	done
	for d in "$root/swept/$inst"/*; do
		[ -d "$d" ] || continue
		at=$(noted "$d" aside | tr -dc 0-9 | sed 's/^0*//') # which would make it octal
		[ -n "$at" ] || at=$(stat -c %Z "$d" 2>/dev/null) || continue
		at=$(($(date +%s) - at))
		[ "$at" -ge 0 ] || at=0
		echo "swept ${d##*/} $at $(noted "$d" last | tr -dc a-z)"
	done
}

# noted DIR NAME: what is noted of a project that was set aside. Containers may have
# written there.
noted() { [ ! -L "$1/.fuse" ] && [ ! -L "$1/.fuse/$2" ] && [ -f "$1/.fuse/$2" ] && head -c 12 "$1/.fuse/$2"; }
