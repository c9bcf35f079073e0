# The far end of Playguard: what is run on a marquee, by any POSIX shell. It
# needs flock, setsid, timeout, tar and sha256sum beside the usual tools.
#
#   runner observe ROOT INSTALLATION NONCE
#   runner start   ROOT INSTALLATION EPOCH OP PROJECT PLAYGROUND KIND SECONDS [VOLUME...]
#   runner poll    ROOT INSTALLATION OP
#   runner cancel  ROOT INSTALLATION EPOCH OP
#   runner reap    ROOT INSTALLATION DAYS
#   runner enroll  ROOT INSTALLATION
#   runner claim   ROOT INSTALLATION EPOCH
#   runner keep    ROOT INSTALLATION STREAM
#   runner hangup  ROOT INSTALLATION STREAM
#   runner logs    ROOT INSTALLATION STREAM PLAYGROUND FOLLOW TAIL SECONDS STAMPS [SERVICE...]
#   runner execute ROOT INSTALLATION STREAM PLAYGROUND SERVICE TERMINAL USER WORKDIR COMMAND...
#
# Exit statuses: 0 done, 64 wrong use, 65 not ours, 69 no daemon or tool,
# 73 cannot write, 75 superseded or busy, 124 too late.
set -u
umask 077
LC_ALL=C
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
DOCKER_CLI_HINTS=false COMPOSE_ANSI=never COMPOSE_PROGRESS=plain COMPOSE_INTERACTIVE_NO_CLI=1
export LC_ALL PATH DOCKER_CLI_HINTS COMPOSE_ANSI COMPOSE_PROGRESS COMPOSE_INTERACTIVE_NO_CLI
I=fuse.playguard.installation

say() { printf 'runner: %s\n' "$*" >&2; }
die() { code=$1; shift; say "$@"; exit "$code"; }
# word VALUE: one plain path segment, as our own names are.
word() { case $1 in '' | *[!A-Za-z0-9._-]* | [.-]*) die 64 "a name that is not ours" ;; esac; }
number() { case $1 in '' | *[!0-9]*) die 64 "no number" ;; esac; }
boot() { cat /proc/sys/kernel/random/boot_id; }
# ticks: seconds since the host's start, for how long something takes: its clock may be
# set meanwhile.
ticks() { read -r up _ </proc/uptime && echo "${up%.*}"; }
# scratch: a directory of this shell's own, which goes with it, also when its time is
# over or nobody listens any more: not every shell sees to that. It may hold secrets.
scratch() {
	tmp=
	trap 'rm -rf ${tmp:+"$tmp"}' EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 141' PIPE
	trap 'exit 143' TERM
	tmp=$(mktemp -d "${TMPDIR:-/tmp}/fuse-runner.XXXXXX") || die 73 "no room"
}
# begun PID: when it started, so that a number that is used again is no match.
begun() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

mine() { printf '%s %s %s\n' "$$" "$(begun $$)" "$(boot)"; }

# fenced EPOCH: refuses one that another has overtaken. An epoch that is there and
# cannot be read may be any.
fenced() {
	seen=0
	[ ! -e "$fences/epoch" ] || seen=$(cat "$fences/epoch") || die 73 "cannot read the epoch"
	case $seen in '' | *[!0-9]*) die 73 "the epoch that is kept is no number" ;; esac
	[ "$1" -ge "$seen" ] || die 75 "epoch $1 was superseded by $seen"
}

# busy: names the newest operation that runs, and its age.
busy() {
	at=0 who=
	for r in "$ops"/*; do
		[ -f "$r/what" ] && [ ! -f "$r/exit" ] && t=$(stat -c %Y "$r/what" 2>/dev/null) && [ "$t" -ge "$at" ] && [ "$(state "$r")" = running ] || continue
		at=$t who=$(cat "$r/what" 2>/dev/null)
	done
	# shellcheck disable=SC2086 # project, kind and epoch have no spaces
	[ -z "$who" ] || { set -- $who; die 75 "another operation is at work: $2 of $1 under epoch $3, for $(($(date +%s) - at)) s"; }
	die 75 "another operation is at work"
}

# fence EPOCH: holds the installation's lock on descriptor 9 from here on, and
# refuses an epoch that another has overtaken.
fence() {
	mkdir -p "$fences" || die 73 "no directory for the fence"
	exec 9>"$fences/lock" || die 73 "no lock"
	flock -n 9 || busy
	raised "$1"
	exec 8>&-
}

# raised EPOCH: no older one is taken from here on, whoever holds the installation's
# lock. The epoch's own is held on descriptor 8 until that is closed, for moments only.
raised() {
	exec 8>"$fences/epoch.lock" || die 73 "no lock of the epoch"
	by=$(($(ticks) + 10))
	until flock -n 8; do # which has no -w everywhere
		[ "$(ticks)" -lt "$by" ] || die 73 "the lock of the epoch is held"
		sleep 0.1 2>/dev/null || sleep 1
	done
	fenced "$1"
	[ "$1" -gt "$seen" ] || return 0
	# A full disk may keep a part of it.
	printf '%s\n' "$1" >"$fences/epoch.new" && [ "$(cat "$fences/epoch.new")" = "$1" ] || die 73 "cannot keep the epoch"
	sync "$fences/epoch.new" 2>/dev/null
	mv "$fences/epoch.new" "$fences/epoch" || die 73 "cannot keep the epoch"
}

# owned: the marker in the project's directory says that it is this playground.
owned() {
	m=$dir/.fuse/owner.json
	[ -f "$m" ] && [ ! -L "$dir" ] &&
		grep -qxF "  \"kind\": \"playground\"," "$m" && grep -qxF "  \"installation\": \"$inst\"," "$m" &&
		grep -qxF "  \"playground\": \"$playground\"," "$m" && grep -qxF "  \"project\": \"$project\"," "$m"
}

listen=100
start() {
	epoch=$1 op=$2 project=$3 playground=$4 kind=$5 seconds=$6
	shift 6
	number "$epoch"; word "$op"; word "$project"; word "$playground"; number "$seconds"
	for v; do word "$v"; done
	case $kind in up | stop | down | files | destroy | reclaim | branch | pull | auth | mark | sweep | restore | purge) ;; *) die 64 "no such operation" ;; esac
	[ $# -eq 0 ] || [ "$kind" = destroy ] || [ "$kind" = reclaim ] || die 64 "only destroy and reclaim take volumes"
	rec=$ops/$op dir=$root/playgrounds/$project
	[ -d "$rec" ] && { cat >/dev/null; return 0; }
	fence "$epoch"
	[ -d "$rec" ] && { cat >/dev/null; return 0; }
	if [ -e "$dir" ] || [ -L "$dir" ]; then owned || die 65 "the directory of $project is not this playground's"; fi
	case $kind in files | destroy | reclaim | branch | pull | restore | purge) ;; *) [ -e "$dir" ] || die 65 "the directory of $project is not there" ;; esac
	mkdir -p "$ops" "$root/playgrounds" && rm -rf "$ops"/*.new && mkdir "$rec.new" || die 73 "no room for the operation"
	trap 'rm -rf "$rec.new"' EXIT # which may hold secrets
	cat >"$rec.new/payload" || die 73 "no room for the payload"
	raised "$epoch" # that of another may have come since
	printf '%s %s %s\n' "$project" "$kind" "$epoch" >"$rec.new/what" && mine >"$rec.new/pid" && mv "$rec.new" "$rec" ||
		die 73 "no room for the operation"
	exec 8>&-
	# The lock goes with the operation, not with this session: it is inherited.
	setsid sh "$0" run "$root" "$inst" "$op" "$project" "$playground" "$kind" "$seconds" "$@" \
		</dev/null >"$rec/out" 2>"$rec/err" &
	# Who it is, as it says itself: on a busy host that may take longer than this call.
	who=$! since=$(begun "$!")
	[ -z "$since" ] || { printf '%s %s %s\n' "$who" "$since" "$(boot)" >"$rec/pid.at" && mv "$rec/pid.at" "$rec/pid"; }
	tries=0 # until it listens to who tells it to end
	while [ "$tries" -lt "$listen" ] && [ ! -f "$rec/exit" ] && [ ! -f "$rec/watch" ]; do
		tries=$((tries + 1))
		sleep 0.05 2>/dev/null || sleep 1
	done
}

# run: the operation itself, detached. Its end is one file, written last. What it
# starts inherits the lock, so that nothing else begins while Compose works on after
# this shell was killed; an end in good order gives it back, whoever still has it.
run() {
	op=$1 project=$2 playground=$3 kind=$4 seconds=$5
	shift 5
	rec=$ops/$op dir=$root/playgrounds/$project
	stopped=0
	trap 'stopped=143' TERM
	trap 'stopped=124' ALRM
	mine >"$rec/pid.new" && mv "$rec/pid.new" "$rec/pid"
	watched
	leftovers
	allowed=$seconds before=$(ticks)
	"do_$kind" "$@"
	status=$?
	unwatched
	rm -rf "$root/playgrounds/.new-$op"
	[ "$stopped" = 0 ] || [ "$status" = 0 ] || status=$stopped
	case $status:$stopped in 124:* | 137:* | 143:0 | 143:124) # busybox does not say which are of a timeout
		[ $(($(ticks) - before)) -lt "$allowed" ] || { status=124; say "its time of $allowed s was over: what it waited for was ended"; }
		;;
	esac
	# What people last had done here, for whoever has to guess it. A container may have
	# made a link of it.
	case $status:$kind in 0:up | 0:stop | 0:down)
		[ -L "$dir/.fuse" ] || { printf '%s\n' "$kind" >"$rec/last" && mv -T "$rec/last" "$dir/.fuse/last"; } 2>/dev/null
		;;
	esac
	rm -f "$rec/payload" # it may hold secrets, and is in its place
	printf '%s\n' "$status" >"$rec/exit.new"
	kept=$?
	flock -u 9 # before the end is told: who reads of it begins the next at once
	[ "$kept" != 0 ] || mv "$rec/exit.new" "$rec/exit"
}

# watched: an operation as a whole ends, whatever it waits for. Who sees to that is in a
# session of his own, is no child of the operation's, and has no part in its lock.
grace=100
watched() { (setsid sh "$0" watch "$root" "$inst" "$op" "$$" "$(begun $$)" $((seconds + grace)) </dev/null >/dev/null 2>&1 9>&- & echo "$!" >"$rec/watch"); }
unwatched() {
	read -r w <"$rec/watch" && grep -q "$op" "/proc/$w/cmdline" || return 0
	kill -KILL "-$w" || { kill -KILL "$w"; kill -KILL "-$w"; }
	rm -f "$rec/watch"
} 2>/dev/null

# watch OP PID BEGUN SECONDS: after these the operation is told that its time is over and
# what it waits for is ended, so that it comes to its end by itself; at last it is made to.
pace=5 relief=40
watch() {
	us=$2 began=$3 by=$(($(ticks) + $4))
	while [ "$(ticks)" -lt "$by" ]; do
		sleep "$pace"
		works || exit 0
	done
	for round in 1 2 3; do
		kill -ALRM "$us"
		late=$(fellows "$us")
		for s in TERM KILL; do
			for p in $late; do [ "$p" = "$us" ] || ! fellows "$us" | grep -qxF "$p" || kill "-$s" "$p"; done
			sleep "$pace"
		done
		[ "$round" = 3 ] || sleep "$relief"
		[ ! -f "$ops/$1/exit" ] && works || exit 0
	done
	{ echo 124 >"$ops/$1/made" && say "its time was over, and it did not come to its end: it was made to" 2>>"$ops/$1/err"; } 2>/dev/null
	for p in $(fellows "$us"); do kill -KILL "$p"; done
}
# works: the operation's shell is there or, if that was killed, anything that it began.
works() { [ "$(begun "$us")" = "$began" ] || { [ ! -d "/proc/$us" ] && [ -n "$(fellows "$us")" ]; }; }

# leftovers: what operations that were cut left of what they were given. It may
# hold secrets; the lock says that none of them is at work.
leftovers() {
	for left in "$ops"/*; do
		[ "$left" != "$rec" ] || continue
		let_go "$left"
		[ -f "$left/exit" ] || rm -rf "$left/payload" "$root/playgrounds/.new-${left##*/}"
	done
}

# let_go OPERATION: containers that it held still go on. Who they are stays written
# until none of them is paused, which a daemon that does not answer leaves open.
let_go() {
	[ -f "$1/held" ] || return 0
	open=
	while read -r id; do
		case $id in '' | *[!0-9a-f]*) continue ;; esac
		asked unpause "$id" >/dev/null 2>&1 ||
			{ paused=$(asked ps -q --filter "id=$id" --filter status=paused 2>/dev/null) && [ -z "$paused" ]; } || open=1
	done <"$1/held"
	[ -z "$open" ] || return 69
	rm -f "$1/held"
}

# straight: what services mount of the directory leads nowhere else. Containers can
# make links there, which the daemon would follow.
straight() {
	while IFS= read -r line; do
		case $line in
		"# fuse.mount "*) ;;
		"# "*) continue ;;
		*) return 0 ;;
		esac
		at=$dir rest=${line#"# fuse.mount "}/
		while [ -n "$rest" ]; do
			at=$at/${rest%%/*} rest=${rest#*/}
			[ ! -L "$at" ] || { say "permission denied: a service mounts ${line#"# fuse.mount "}, where a link leads elsewhere"; return 65; }
		done
	done <"$dir/compose.yml"
}

# plugin is Compose as the user here has it, whom DOCKER_CONFIG hides from docker.
plugin=${DOCKER_CONFIG:-${HOME:-/root}/.docker}/cli-plugins/docker-compose

# logins DIR: docker and Compose use those that are there. They hide which daemon the
# user's own configuration names, as where Docker runs without root; it stays the same.
logins() {
	[ -d "$1/docker-config" ] || return 0
	here=$(docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null)
	DOCKER_CONFIG=$1/docker-config
	export DOCKER_CONFIG
	case $here in
	unix://*)
		unset DOCKER_CONTEXT
		DOCKER_HOST=$here
		export DOCKER_HOST
		;;
	esac
}

# limited: compose, killed after its time.
limited() {
	logins "$dir"
	cd "$dir" || return 65
	if timeout -k 5 "$seconds" docker compose version >/dev/null 2>&1; then
		timeout -k 10 "$seconds" docker compose -p "$project" "$@"
	elif [ -x "$plugin" ] && timeout -k 5 "$seconds" "$plugin" version >/dev/null 2>&1; then
		timeout -k 10 "$seconds" "$plugin" -p "$project" "$@"
	else
		timeout -k 10 "$seconds" docker-compose -p "$project" "$@"
	fi
}
do_up() {
	straight && roll && rest || return
	# shellcheck disable=SC2086 # names have no spaces
	case $lacks in
	'*') limited -f "$dir/compose.yml" up -d --remove-orphans ;;
	'') return 0 ;;
	*) limited -f "$dir/compose.yml" up -d --no-deps --no-recreate $lacks ;;
	esac
}

# rest: which services are to be brought up, * for all. Of a trick those that have
# ended well are left alone: an up that comes after one that was cut would run them
# again.
rest() {
	lacks='*'
	sed -n '/^# /!q; p' "$dir/compose.yml" | grep -qx '# fuse.once' || return 0
	asked ps -a --filter "label=$I=$inst" --filter "label=fuse.playguard.playground=$playground" --filter "label=com.docker.compose.project=$project" \
		--filter status=exited --filter exited=0 --format '{{.Label "com.docker.compose.service"}}' >"$rec/done" || return 69
	[ -s "$rec/done" ] || return 0
	limited -f "$dir/compose.yml" config --services >"$rec/all" || return
	lacks=$(grep -vxF -f "$rec/done" "$rec/all")
	return 0
}
do_stop() { limited -f "$dir/compose.yml" stop; }
do_down() { limited -f "$dir/compose.yml" down --remove-orphans; }

# --- services that are replaced without a gap ---

# How long a new container may take, how long one without a health check has to
# run, and how often it may be started again, until it counts as up.
patience=90 stays=10 restarts=5

asked() {
	timeout -k 5 30 docker "$@" </dev/null
	answer=$?
	case $answer in 124 | 137 | 143) return 69 ;; esac # which is not the operation's own time
	return "$answer"
}

# replicas: of the service: id, digest, state, health, restarts, exit status and writable
# mounts of each container.
replicas() {
	ids=$(asked ps -aq --no-trunc --filter "label=$I=$inst" --filter "label=fuse.playguard.playground=$playground" \
		--filter "label=com.docker.compose.project=$project" --filter "label=com.docker.compose.service=$service" \
		--filter label=com.docker.compose.oneoff=False) || return 69
	# shellcheck disable=SC2086 # ids have no spaces
	[ -z "$ids" ] || asked inspect --type container --format '{{.ID}} {{or (index .Config.Labels "fuse.playguard.digest") "-"}} {{.State.Status}} {{if .State.Health}}{{.State.Health.Status}}{{else}}none{{end}} {{.RestartCount}} {{.State.ExitCode}} -{{range .Mounts}}{{if and .RW (ne (printf "%s" .Type) "tmpfs")}}{{.Destination}},{{end}}{{end}}' $ids || return 69
}

# sorted DIGEST: which of the replicas is the old one (the best that runs and is
# made from something else), which the new one, and which are neither. Nothing
# if none runs: then there is nothing to keep.
sorted() {
	awk -v want="$1" '
		{ id[NR] = $1; good = $3 != "running" ? 0 : $4 == "healthy" || $4 == "none" ? 3 : $4 == "starting" ? 2 : 1
		  side = $2 == want ? "new" : "old"
		  if (good > best[side]) { best[side] = good; pick[side] = $1 } }
		END { if (!best["new"] && !best["old"]) exit
		  for (i = 1; i <= NR; i++) print (id[i] == pick["new"] ? "new" : id[i] == pick["old"] ? "old" : "spare"), id[i] }'
}
# those WHICH LIST
those() { awk -v which="$1" '$1 == which { print $2 }' "$2"; }

# roll: every service that is named at the head of the compose file and whose
# container is made from another definition gets a new one beside it. When all
# new ones are up the old ones go, and up finds its work done; else the new ones
# go, and nothing has happened. Containers are removed by id, and never the last
# that runs. What was cut is taken up from what is there; "rolling" names it for
# a definition that no longer rolls the service.
roll() {
	rolling=$dir/.fuse/rolling
	sed -n '/^# fuse\.roll /!q; s/^# fuse\.roll //p' "$dir/compose.yml" >"$rec/roll" || return 73
	if [ -f "$rolling" ]; then
		while read -r service want old; do
			[ -n "$(those "$service" "$rec/roll")" ] || withdrawn || return
		done <"$rolling"
	fi
	late=$(($(ticks) + seconds)) scales=
	: >"$rec/rolling" || return 73
	while read -r service want; do
		case $service in [!A-Za-z0-9]* | *[!A-Za-z0-9._-]*) return 64 ;; esac
		replicas >"$rec/now" && sorted "$want" <"$rec/now" >"$rec/sorted" || return 69
		discard "$(those spare "$rec/sorted")" || return
		old=$(those old "$rec/sorted")
		[ -n "$old" ] || continue
		scales="$scales --scale $service=2"
		echo "$service $want $old" >>"$rec/rolling" || return 73
	done <"$rec/roll"
	[ -n "$scales" ] || { rm -f "$rolling"; return; }
	mv -T "$rec/rolling" "$rolling" || return 73
	# Alone, since up runs one-shots again, and those here may be of before.
	# shellcheck disable=SC2046,SC2086 # words of our own
	missing && limited -f "$dir/compose.yml" up -d --no-deps --no-recreate $scales $(cut -d' ' -f1 "$rolling") && proven && retire
	status=$?
	[ "$status" = 0 ] || withdraw || return
	rm -f "$rolling"
	seconds=$((late - $(ticks)))
	[ "$seconds" -gt 10 ] || seconds=10
	return "$status"
}

# missing: services that were never here come first, since new containers may
# need them. What is there is left alone.
missing() {
	limited -f "$dir/compose.yml" config --services >"$rec/all" &&
		asked ps -a --filter "label=com.docker.compose.project=$project" --format '{{.Label "com.docker.compose.service"}}' >"$rec/have" || return
	lacks=$(grep -vxF -f "$rec/have" "$rec/all") || return 0
	# shellcheck disable=SC2086 # names have no spaces
	limited -f "$dir/compose.yml" up -d --no-deps --no-recreate $lacks
}

discard() {
	# shellcheck disable=SC2086 # ids have no spaces
	[ -z "$1" ] || asked rm -f $1 >/dev/null
}

# proven: waits until each new container is healthy, or has run for a while if
# it has no health check.
proven() {
	end=$(($(ticks) + patience))
	[ "$end" -le "$late" ] || end=$late
	: >"$rec/since"
	while :; do
		[ "$stopped" = 0 ] || return 143
		waits=
		while read -r service want old; do judge || return; done <"$rolling"
		[ -n "$waits" ] || return 0
		[ "$(ticks)" -lt "$end" ] || { say "failed to become healthy in time beside the old one, which stays:$waits"; return 124; }
		sleep 1
	done
}

# judge: fails if the service's new container is hopeless, and adds it to waits
# if it is not yet up.
judge() {
	replicas >"$rec/now" || return 69
	read -r id _ state health again code mounts <<-EOF
		$(awk -v want="$want" -v old="$old" '$2 == want && $1 != old' "$rec/now")
	EOF
	bad="service $service failed beside the old one, which stays:"
	[ -n "$id" ] || { say "$bad no container came"; return 70; }
	[ "$mounts" = - ] || { say "$bad its image declares a volume at ${mounts#-} and it is marked zero_downtime; mount tmpfs there, or take the mark away"; return 70; }
	case $state in
	running | restarting) ;;
	*) say "$bad it exited with code $code"; return 70 ;;
	esac
	[ "$again" -lt "$restarts" ] || { say "$bad it exited with code $code and was started again $again times"; return 70; }
	[ "$state $health" != "running healthy" ] || return 0
	if [ "$state $health" = "running none" ]; then
		# When it was first seen in this life of it.
		first=$(awk -v life="$id.$again" '$1 == life { print $2 }' "$rec/since")
		if [ -z "$first" ]; then
			first=$(ticks)
			echo "$id.$again $first" >>"$rec/since"
		fi
		[ $(($(ticks) - first)) -lt "$stays" ] || return 0
	fi
	waits="$waits $service ($state, $health)"
}

# retire: the old ones go, if all new ones still run.
retire() {
	gone=
	while read -r service want old; do
		replicas >"$rec/now" || return 69
		awk -v want="$want" '$2 == want && $3 == "running" { ok = 1 } END { exit !ok }' "$rec/now" ||
			{ say "service $service failed just after it had come up"; return 70; }
		gone="$gone $old"
	done <"$rolling"
	# shellcheck disable=SC2086 # ids have no spaces
	timeout -k 10 "$seconds" docker stop $gone >/dev/null && asked rm $gone >/dev/null
}

# withdraw: the new ones go, each if its old one still runs.
withdraw() {
	while read -r service want old; do withdrawn || return; done <"$rolling"
}
withdrawn() {
	replicas >"$rec/now" || return 69
	grep -q "^$old [^ ]* running " "$rec/now" || return 0
	discard "$(awk -v want="$want" -v old="$old" '$2 == want && $1 != old { print $1 }' "$rec/now")"
}

# place REL: takes a file of the new directory over, if it differs; what was there
# is kept aside. Containers may write there while this is done: each directory is
# entered once and no link is followed, and nothing but a file is read.
place() (
	cd "$dir" && at=$(pwd -P) || exit 73
	rest=$1
	while [ "$rest" != "${rest#*/}" ]; do
		step=./${rest%%/*} at=$at/${rest%%/*} rest=${rest#*/}
		[ ! -L "$step" ] || exit 65
		[ -d "$step" ] || (umask 022 && mkdir "$step") || exit 73
		cd "$step" && [ "$(pwd -P)" = "$at" ] || exit 65
	done
	old=./$rest kept=$root/aside/$project/$op/$1
	if [ -L "$old" ] || [ -f "$old" ]; then
		[ -L "$old" ] || ! timeout -k 5 60 cmp -s "$new/$1" "$old" || exit 0
		mkdir -p "${kept%/*}" && timeout -k 5 60 cp -pP "$old" "$kept" || exit 73
	elif [ -d "$old" ]; then
		exit 73
	elif [ -e "$old" ]; then
		mkdir -p "${kept%/*}" && mv -T "$old" "$kept" || exit 73
	fi
	mv -T "$new/$1" "$old" || exit 73
)

# do_files: the compose file comes last, so that it tells that the rest is there.
do_files() {
	new=$root/playgrounds/.new-$op
	rm -rf "$new" && mkdir "$new" && tar -xpf "$rec/payload" -C "$new" || return 73
	[ -f "$new/compose.yml" ] && [ -f "$new/.fuse/owner.json" ] || return 64
	if [ ! -d "$dir" ]; then
		touch "$new/.fuse/lock" && mv -T "$new" "$dir" || return 73
		return 0
	fi
	owned || return 65
	if [ -d "$new/docker-config" ]; then
		rm -rf "$dir/docker-config" && mv -T "$new/docker-config" "$dir/docker-config" || return 73
	fi
	(cd "$new" && find . -type f ! -path ./compose.yml) >"$rec/files" || return 73
	while IFS= read -r f; do place "${f#./}" || return; done <"$rec/files"
	place compose.yml
}

# do_destroy VOLUME...: containers by label, so that no file is needed for it;
# then the volumes that are named and carry our labels; then the directory.
do_destroy() {
	ours="--filter label=$I=$inst --filter label=fuse.playguard.playground=$playground"
	# shellcheck disable=SC2086 # words of our own
	ids=$(asked ps -aq --no-trunc $ours) || return 69
	# shellcheck disable=SC2086 # ids have no spaces
	[ -z "$ids" ] || timeout -k 10 "$seconds" docker rm -f $ids >/dev/null || return
	# shellcheck disable=SC2086 # words of our own
	nets=$(asked network ls -q --filter "label=com.docker.compose.project=$project" --filter "label=$I=$inst") || return 69
	# shellcheck disable=SC2086 # ids have no spaces
	[ -z "$nets" ] || asked network rm $nets >/dev/null || return
	for v; do
		have=$(asked volume ls -q --filter "label=$I=$inst" --filter "label=fuse.playguard.playground=$playground" --filter "name=^$v\$") || return 69
		! printf '%s\n' "$have" | grep -qxF "$v" || timeout -k 10 "$seconds" docker volume rm "$v" >/dev/null || return
	done
	if [ -d "$dir" ]; then
		owned || return 65
		unmounted "$dir" || return 77
		contents -exec rm -rf {} + 2>"$rec/left" >/dev/null
		[ -z "$(contents | head -n 1)" ] || ! grep -qx "by daemon" "$rec/payload" 2>/dev/null || through_daemon
		if [ -n "$(contents | head -n 1)" ]; then
			say "everything is gone but files in $dir that $(id -un) may not remove ($(head -n 1 "$rec/left" | cut -c1-120)): as root there, rm -rf $dir"
			return 77
		fi
		rm -rf "$dir" || return 73
	fi
	rm -rf "$root/aside/$project" || return 73
}

# unmounted DIR: nothing is mounted below it. What lies there is not the directory's,
# and would go with it.
unmounted() {
	[ -d "$1" ] || return 0
	at=$(cd "$1" && pwd -P | sed 's/\\/\\134/g; s/ /\\040/g') && # as the kernel writes them
		over=$(below=$at/ awk 'index($5, ENVIRON["below"]) == 1 { print $5; exit }' /proc/self/mountinfo) || return 73
	[ -z "$over" ] || { say "something is mounted at $over, which does not go with the directory: umount it there"; return 73; }
}

# contents [ACTION...]: what is in the project's directory beside what says whose it
# is, which goes last: without that nobody could go on.
contents() { find "$dir" -mindepth 1 -maxdepth 1 ! -name .fuse ! -name compose.yml "$@"; }

# through_daemon: containers leave files of root, whom we may not be; the daemon is.
# Images of the project itself are asked, which see nothing but its directory.
through_daemon() {
	set --
	for f in "$dir"/* "$dir"/.[!.]* "$dir"/..?*; do
		case ${f##*/} in .fuse | compose.yml) continue ;; esac
		if [ -e "$f" ] || [ -L "$f" ]; then set -- "$@" "/left/${f##*/}"; fi
	done
	sed -n 's/^ *image: *//p' "$dir/compose.yml" | tr -d "\"'" | sort -u >"$rec/images"
	while read -r image; do
		case $image in -*) continue ;; esac
		timeout -k 5 60 docker run --rm --pull never --network none --user 0:0 --cap-drop ALL --cap-add DAC_OVERRIDE --cap-add FOWNER \
			--security-opt no-new-privileges --label "$I=$inst" --label "fuse.playguard.playground=$playground" \
			--label "com.docker.compose.project=$project" --entrypoint rm --mount "type=bind,source=$dir,target=/left" "$image" -rf -- "$@" </dev/null >/dev/null 2>>"$rec/left" && return
	done <"$rec/images"
}

# session PID: the processes of the session that PID began, which is gone itself.
# The kernel gives its number to nobody as long as there are any.
session() { [ -d "/proc/$1" ] || fellows "$1"; }
fellows() {
	grep -H '' /proc/[0-9]*/stat 2>/dev/null | awk -v session="$1" '
		{ i = index($0, ":"); f = substr($0, 1, i - 1); all[f] = all[f] " " substr($0, i + 1) }
		END { for (f in all) {
			split(f, path, "/"); sub(/.*\) /, "", all[f]); split(all[f], w, " ")
			if (w[4] == session && w[1] != "Z" && w[1] != "X") print path[3]
		} }'
}

# state: running, lost, or the exit status. An operation whose shell was killed
# runs as long as anything that it started.
state() {
	[ -f "$1/exit" ] && { cat "$1/exit"; return; }
	[ ! -f "$1/lost" ] || ! cmp -s "$1/lost" "$1/pid" || { unsaid "$1"; return; }
	pid=0 when='' where=''
	if read -r pid when where 2>/dev/null <"$1/pid" && [ "$where" = "$(boot)" ] && [ -n "$when" ] && [ "$(begun "$pid")" = "$when" ]; then
		echo running
	elif [ -f "$1/exit" ]; then
		cat "$1/exit"
	elif [ "$where" = "$(boot)" ] && [ -n "$(session "$pid")" ]; then
		echo running
	else
		cp "$1/pid" "$1/lost" 2>/dev/null # nothing of it comes back
		unsaid "$1"
	fi
}
# unsaid: how one ended that did not say so itself: lost, or made to because its time was over.
unsaid() { cat "$1/made" 2>/dev/null || echo lost; }

poll() {
	word "$1"
	[ -d "$ops/$1" ] || { echo unknown; return; }
	state "$ops/$1"
	tail -c 4096 "$ops/$1/err" 2>/dev/null
	return 0
}

cancel() {
	number "$1"; word "$2"
	rec=$ops/$2
	fenced "$1"
	[ "$(state "$rec" 2>/dev/null)" = running ] || return 0
	read -r pid _ <"$rec/pid"
	# The shell writes down the end; what it waits for is told to end.
	for p in $(cat "/proc/$pid/task/$pid/children" 2>/dev/null || session "$pid"); do kill -TERM "$p"; done
	kill -TERM "$pid" 2>/dev/null
	return 0
}

# claim EPOCH: from here on, no older epoch starts anything. What is at work goes on.
claim() {
	number "$1"
	mkdir -p "$fences" || die 73 "no directory for the fence"
	raised "$1"
}

# outdated: what was set aside when files were written, of our playgrounds: long ago,
# or by one of too many operations. What has a repository in it may be work.
aside_days=30 aside_most=20
outdated() {
	for kept in "$root/aside"/*; do
		[ -d "$kept" ] && [ ! -L "$kept" ] && grep -qxF "  \"installation\": \"$inst\"," "$root/playgrounds/${kept##*/}/.fuse/owner.json" 2>/dev/null || continue
		n=0
		ls -1t "$kept" | while read -r op; do
			n=$((n + 1)) at=$kept/$op
			[ "$n" -gt "$aside_most" ] || [ -n "$(find "$at" -maxdepth 0 -mtime "+$aside_days")" ] || continue
			[ -n "$(find "$at" -name .git -prune -print 2>&1 | head -n 1)" ] || rm -rf "$at"
		done
	done
}

# reap DAYS: forgets operations that began long ago, and of those of yesterday and
# before all but the last; what cut shells left; and other versions of this script.
ops_most=500 script_days=30
reap() {
	number "$1"
	outdated
	find "${TMPDIR:-/tmp}" -maxdepth 1 -type d -name 'fuse-runner.*' -user "$(id -u)" -mtime +0 -exec rm -rf {} + 2>/dev/null
	case $0 in "$root"/bin/runner-*)
		touch "$0" # by which another version sees that it is in use
		find "$root/bin" -maxdepth 1 -type f \( -name 'runner-*' -o -name '.new-*' \) -mtime "+$script_days" -exec rm -f {} +
		;;
	esac
	[ -d "$ops" ] || return 0
	[ ! -d "$streams" ] || find "$streams" -type f -mtime "+$1" | while read -r f; do lives "${f%.*}.pid" || rm -f "$f"; done
	find "$ops" -mindepth 2 -maxdepth 2 -name what -mtime "+$1" | while read -r f; do forget "${f%/what}"; done
	n=0
	ls -1t "$ops" | while read -r op; do
		n=$((n + 1))
		[ "$n" -le "$ops_most" ] || [ ! -f "$ops/$op/exit" ] || [ -z "$(find "$ops/$op/what" -mtime +0 2>/dev/null)" ] || forget "$ops/$op"
	done
}

# forget OPERATION: with what it was given, if it was cut; not while it holds containers.
forget() { let_go "$1" && rm -rf "$root/playgrounds/.new-${1##*/}" "$1"; }

# enroll: the installation's place on this host, and its witness volume.
enroll() {
	mkdir -p "$root/playgrounds" "$root/installations" "$ops" "$fences" && : >>"$root/installations/$inst" ||
		die 73 "cannot write below $root"
	docker volume create --label "fuse.playguard.witness=$inst" "fuse-witness-$inst" >/dev/null || die 69 "no witness volume"
}

# --- what people read and run ---

# keep STREAM: takes the environment of a command, which is on no command line.
keep() {
	word "$1"
	mkdir -p "$streams" && cat >"$streams/$1.env" || die 73 "no room for the stream"
}

# begin STREAM DESCRIPTOR: says there that output follows. The stream ends with
# its connection: whether who started us is still there is asked every second.
begin() {
	stream=$1 us=$$ from=$PPID ended=0
	word "$stream"
	mkdir -p "$streams" && mine >"$streams/$stream.pid" || die 73 "no room for the stream"
	trap 'ended=1' HUP TERM
	since=$(begun "$from")
	# Nothing that it does may keep the caller waiting for the end of output.
	(
		trap - HUP TERM
		while [ -n "$since" ] && [ "$(begun "$from")" = "$since" ]; do sleep 1; done
		kill -HUP "$us"
	) </dev/null >/dev/null 2>&1 3<&- &
	watch=$!
	trap 'finish' EXIT
	printf 'FUSE-STREAM %s\n' "$stream" >&"$2"
}

# finish: a session has a group of processes of its own, which goes with it.
finish() {
	code=$?
	trap - EXIT
	trap '' HUP TERM
	rm -rf "$streams/$stream".* ${tmp:+"$tmp"}
	kill "$watch" 2>/dev/null
	[ "$ended" = 0 ] || kill -TERM 0 2>/dev/null
	exit "$code"
}

# hangup STREAM: ends one whose connection is still there.
hangup() {
	word "$1"
	lives "$streams/$1.pid" || return 0
	kill -HUP "$pid"
}

# lives FILE: who wrote there who he is goes on: pid is his.
lives() { read -r pid when where 2>/dev/null <"$1" && [ "$where" = "$(boot)" ] && [ "$(begun "$pid")" = "$when" ]; }

# members [OPTION...]: id, service and number of the playground's containers.
members() {
	docker ps "$@" --no-trunc --filter "label=$I=$inst" --filter "label=fuse.playguard.playground=$playground" \
		--format '{{.ID}} {{.Label "com.docker.compose.service"}} {{.Label "com.docker.compose.container-number"}}' >"$streams/$stream.members" &&
		grep -E '^[0-9a-f]+ [A-Za-z0-9._-]+ [0-9]+$' "$streams/$stream.members" | sort -k2
}

# wanted SERVICE [NAME...]
wanted() {
	[ $# -gt 1 ] || return 0
	one=$1
	shift
	for w; do [ "$w" != "$one" ] || return 0; done
	return 1
}

logs() {
	playground=$2 follow=$3 tail=$4 back=$5 stamps=$6
	word "$playground"; number "$tail"; number "$back"
	scratch
	begin "$1" 2
	shift 6
	for w; do word "$w"; done
	[ "$back" = 0 ] || back=$(($(date +%s) - back))
	if [ "$follow" = 1 ]; then follow "$@"; else past "$@"; fi
}

# past [SERVICE...]: what is there, in the order of time over all containers.
past() {
	members -a >"$tmp/list" || die 69 "no list of containers"
	while read -r id service n; do
		wanted "$service" "$@" || continue
		docker logs --timestamps --tail "$tail" --since "$back" "$id" 2>&1 | sed "s/^\([^ ]*\) \{0,1\}/\1 $service-$n | /"
	done <"$tmp/list" | sort -s -k1,1 |
		if [ "$stamps" = 1 ]; then sed 's/^\([^ ]*\) \([^ ]* | \)/\2\1 /'; else sed 's/^[^ ]* //'; fi
}

# follow [SERVICE...]: also containers that come later, and those that go and
# come back. $tmp has a file for each that was read, with the time of its last
# line, and another for each that is being read.
follow() {
	round=0
	while [ "$ended" = 0 ]; do
		touch -c "$tmp" # by which a reap sees that it is in use
		members -a >"$tmp/list" 2>"$tmp/err" || [ "$round" -gt 0 ] || { cat "$tmp/err" >&2; die 69 "no list of containers"; }
		while read -r id service n; do
			wanted "$service" "$@" || continue
			[ ! -e "$tmp/$id.on" ] || continue
			from=$back lines=all
			[ "$round" -gt 0 ] || lines=$tail
			if [ -s "$tmp/$id" ]; then
				[ "$(docker inspect --type container --format '{{.State.Running}}' "$id" 2>/dev/null)" = true ] || continue
				from=$(cat "$tmp/$id")
			fi
			: >"$tmp/$id.on"
			docker logs --timestamps --follow --tail "$lines" --since "$from" "$id" 2>&1 </dev/null | stamped "$service-$n" &
		done <"$tmp/list"
		round=$((round + 1))
		sleep 2
	done
	exit 129
}

# stamped NAME: lines of one container. The time of the last is kept, and what
# has it already was shown.
stamped() {
	last=$(cat "$tmp/$id" 2>/dev/null)
	after=$last
	while IFS= read -r line || [ -n "$line" ]; do
		last=${line%% *}
		[ "$last" != "$after" ] || continue
		[ "$stamps" = 1 ] || line=${line#* }
		printf '%s | %s\n' "$1" "$line" || break
	done
	printf '%s\n' "${last:-1}" >"$tmp/$id"
	rm -f "$tmp/$id.on"
}

execute() {
	playground=$2 service=$3 terminal=$4 user=$5 workdir=$6
	word "$playground"; word "$service"
	exec 3<&0
	stream=$1
	word "$stream"
	trap 'rm -f "$streams/$stream".*' EXIT # until begin sees to it: what was kept may hold secrets
	id=$(members --filter "label=com.docker.compose.service=$service" | sort -k3n | head -n 1 | cut -d' ' -f1)
	[ -n "$id" ] || die 66 "service $service has no running container"
	at=2
	[ "$terminal" = 0 ] || at=1
	begin "$1" "$at"
	shift 6
	[ $# -gt 0 ] || die 64 "no command"
	set -- "$id" "$@"
	[ -z "$workdir" ] || set -- --workdir "$workdir" "$@"
	[ -z "$user" ] || set -- --user "$user" "$@"
	[ ! -s "$streams/$stream.env" ] || set -- --env-file "$streams/$stream.env" "$@"
	[ "$terminal" = 0 ] || set -- -t --env "TERM=${TERM:-xterm}" "$@"
	docker exec -i --env "FUSE_STREAM=$stream" "$@" <&3 3<&- &
	child=$!
	while :; do
		wait "$child"
		status=$?
		[ "$ended" = 0 ] && kill -0 "$child" 2>/dev/null || break
	done
	[ "$ended" = 0 ] || abandon
	exit "$status"
}

# abandon: who asked for the command has gone. Docker leaves what it began in
# the container; it is told to end, and then made to.
abandon() {
	trap '' HUP TERM
	reach HUP
	sleep 2
	reach KILL
	kill "$child" 2>/dev/null
	exit 129
}

# reach SIGNAL: the processes that carry the stream's name, from outside or, if
# those cannot be read, from inside the container.
reach() {
	# shellcheck disable=SC2016 # for the shell in the container
	find='for e in /proc/[0-9]*/environ; do p=${e#/proc/}; p=${p%/environ}; if [ "$p" != $$ ] && grep -q "FUSE_STREAM=$1" "$e" 2>/dev/null; then kill "-$2" "$p" 2>/dev/null && echo "$p"; fi; done'
	[ -n "$(sh -c "$find" sh "$stream" "$1" 2>/dev/null)" ] ||
		timeout -k 1 5 docker exec --user 0 "$id" sh -c "$find" sh "$stream" "$1" >/dev/null 2>&1 </dev/null
}

# --- the look ---

frame_begin() { : >"$tmp/body"; parts=0 apart=; }
# part NAME COMMAND...: into the body or, if there is a directory for it, into a
# file of its own, which is whole or is not there.
part() {
	part_name=$1; shift
	"$@" >"$tmp/out" 2>"$tmp/err.all"; status=$?
	said=0
	: >"$tmp/err"
	if [ -s "$tmp/err.all" ]; then
		dd if="$tmp/err.all" of="$tmp/err" bs=4096 count=1 2>/dev/null
		said=$(wc -c <"$tmp/err")
	fi
	{
		printf 'PART %s %d %d %d\n' "$part_name" "$status" "$(wc -c <"$tmp/out")" "$said"
		cat "$tmp/out" "$tmp/err"
		printf '\n'
	} >>"$tmp/${apart:-body}"
	parts=$((parts + 1))
	[ -z "$apart" ] || mv "$tmp/$apart" "$tmp/$parts.part"
}
frame_end() {
	printf 'FUSE-LOOK 1 %s\n' "$nonce"
	cat "$tmp/body"
	printf 'END %s %d %d %s\n' "$nonce" "$parts" "$(wc -c <"$tmp/body")" "$(sha256sum <"$tmp/body" | cut -d' ' -f1)"
}

# dirs: names of the directories in playgrounds; those that begin with a dot are
# being made.
dirs() { find "$root/playgrounds" -mindepth 1 -maxdepth 1 -type d ! -name '.*' 2>/dev/null | sed 's,.*/,,' | LC_ALL=C sort; }
ours='^[a-z0-9]\([a-z0-9-]\{0,38\}[a-z0-9]\)\{0,1\}--[a-z0-9]\{1,32\}$'

look_host() {
	[ -f "$root/installations/$inst" ] && echo "installation=$inst" || echo "installation="
	echo "machine_id=$(cat /etc/machine-id)"
	echo "boot_id=$(boot)"
	echo "clock=$(date +%s)"
	echo "uptime=$(cut -d. -f1 /proc/uptime)"
	echo "epoch=$(cat "$fences/epoch" 2>/dev/null || echo 0)"
	echo "disk_free=$(df -Pk "$root" | awk 'NR == 2 { printf "%.0f", $4 * 1024 }')"
	echo "odd_dirs=$(dirs | grep -vc "$ours")"
}
look_daemon() {
	docker info --format 'id={{.ID}}
root={{.DockerRootDir}}
version={{.ServerVersion}}
storage={{.Driver}}' || {
		docker ps -q >/dev/null # an older client says why only here
		return 1
	}
	witness=$(docker volume ls -q --filter "label=fuse.playguard.witness=$inst") || return
	echo "witness=${witness:+$inst}"
	echo "started=$(stat -c %Y "${DOCKER_PIDFILE:-/run/docker.pid}" 2>/dev/null)"
}
# composes: whatever may be Compose here, and the client that finds it.
composes() {
	command -v docker
	command -v docker-compose
	for at in "${plugin%/cli-plugins/*}" /usr/local/lib/docker /usr/local/libexec/docker /usr/lib/docker /usr/libexec/docker; do
		[ ! -e "$at/cli-plugins/docker-compose" ] || echo "$at/cli-plugins/docker-compose"
	done
}
compose_for=3600
look_compose() {
	# It takes v2 a fifth of a second to say and v1 most of one: they are asked
	# again when one of them has changed, and after an hour, since there may be others.
	key=$(composes | while read -r at; do stat -Lc '%n %Y %s' "$at"; done | tr '\n' ' ') known=$root/installations/$inst.compose asked=
	fresh=0 # bash does not negate a redirection that fails
	{ read -r asked && read -r flavour && read -r v && read -r when && [ "$asked" = "${key% }" ] && [ "$when" -le "$from" ] && [ "$when" -gt $((from - compose_for)) ] && fresh=1; } 2>/dev/null <"$known"
	if [ "$fresh" = 0 ]; then
		flavour=v2
		v=$(docker compose version --short 2>/dev/null) || {
			flavour=v1
			command -v docker-compose >/dev/null || return 127
			v=$(docker-compose version --short) || return
		}
		{ printf '%s\n%s\n%s\n%s\n' "${key% }" "$flavour" "$v" "$from" >"$known.new" && mv "$known.new" "$known"; } 2>/dev/null
	fi
	echo "flavour=$flavour"
	echo "version=$v"
}
look_containers() {
	ids=$(docker ps -aq --no-trunc --filter "label=$I=$inst") || return
	# shellcheck disable=SC2086 # ids have no spaces
	[ -z "$ids" ] || docker inspect --type container --format '{"id":{{json .ID}},"name":{{json .Name}},"state":{{json .State.Status}},"exit":{{.State.ExitCode}},"health":{{if .State.Health}}{{json .State.Health.Status}}{{else}}""{{end}},"restart":{{json .HostConfig.RestartPolicy.Name}},"started":{{json .State.StartedAt}},"finished":{{json .State.FinishedAt}},"ports":{{json .NetworkSettings.Ports}},"labels":{{json .Config.Labels}}}' $ids
}
look_foreign() {
	all=$(docker ps -a --no-trunc --filter label=com.docker.compose.project --format "{{.ID}} {{.Label \"com.docker.compose.project\"}} {{.Label \"$I\"}}") || return
	printf '%s\n' "$all" | awk -v us="$inst" 'NF && $3 != us { print $1, $2 }'
}
look_volumes() {
	names=$(docker volume ls -q --filter "label=$I=$inst") || return
	# shellcheck disable=SC2086 # names have no spaces
	[ -z "$names" ] || docker volume inspect --format '{"name":{{json .Name}},"labels":{{json .Labels}}}' $names
}
look_ops() {
	for rec in "$ops"/*; do
		[ -f "$rec/what" ] && read -r project kind epoch <"$rec/what" || continue
		{ [ -f "$rec/exit" ] && read -r end <"$rec/exit"; } 2>/dev/null || end=$(state "$rec") # no process for each
		echo "${rec##*/} $project $kind $epoch $end"
	done
}
look_files() {
	echo "path=$(cd "$root/playgrounds/$1" && pwd -P)" || return
	f=$root/playgrounds/$1/compose.yml
	echo "compose=$([ ! -f "$f" ] || sha256sum <"$f" | cut -d' ' -f1)"
	l=$root/playgrounds/$1/.fuse/last
	echo "last=$([ ! -f "$l" ] || [ -L "$l" ] || head -c 20 "$l" | tr -dc a-z)"
}
# look_checkouts PROJECT: containers may make directories there, so only plain
# names are given, and not too many; the rest is one that is never clean.
most=64
look_checkouts() {
	props=$root/playgrounds/$1/props
	[ ! -L "$props" ] || return 65
	[ -d "$props" ] || return 0
	find "$props" -mindepth 1 -maxdepth 1 -type d ! -name '*[!A-Za-z0-9._-]*' ! -name '-*' | sed 's,.*/,,' | sort | head -n "$most"
	[ -z "$(find "$props" -mindepth 1 -maxdepth 1 -type d \( -name '*[!A-Za-z0-9._-]*' -o -name '-*' \) | head -n 1)" ] &&
		[ "$(find "$props" -mindepth 1 -maxdepth 1 -type d ! -name '*[!A-Za-z0-9._-]*' | wc -l)" -le "$most" ] || echo -others-
}
look_git() {
	command -v git >/dev/null || return 127
	GIT_OPTIONAL_LOCKS=0 GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
	export GIT_OPTIONAL_LOCKS GIT_CONFIG_NOSYSTEM GIT_CONFIG_GLOBAL
	look_tree "$root/playgrounds/$1/props/$2" "$tmp/repository"
}
# look_tree WORK OWN
look_tree() {
	work=$1 at=$1/.git own=$2
	if [ -L "$work" ] || [ -L "$at" ] || [ ! -d "$at" ] || [ -L "$at/HEAD" ] || [ ! -f "$at/HEAD" ]; then
		printf 'repository=no\nhead=no\nbusy=\nchanged=0\nunpushed=0\nstashes=0\n'
		return
	fi
	# Containers write there, and a configuration can name programs to run: only
	# its data is read, through a repository that has no configuration.
	rm -rf "$own" && mkdir -p "$own/info" && head -c 4096 "$at/HEAD" >"$own/HEAD" || return 73
	for f in objects refs packed-refs logs index shallow info/exclude; do ln -s "$at/$f" "$own/$f" || return 73; done
	# A large pack is looked into through a small window.
	git="git -c core.packedGitWindowSize=32m -c core.packedGitLimit=256m --git-dir=$own --work-tree=$work"
	echo repository=yes
	head=$($git rev-parse -q --verify HEAD 2>/dev/null) && echo head=yes || echo head=no
	busy=
	for f in index.lock rebase-merge rebase-apply MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD BISECT_LOG sequencer worktrees; do [ ! -e "$at/$f" ] || busy="$busy $f"; done
	[ -z "$(bent "$at")" ] || busy="$busy link"
	# To look into a submodule as git does is to run it by that one's
	# configuration. One that was never fetched holds nothing.
	$git ls-files --stage -z >"$own/stage" || return
	tr '\n\0' '\001\n' <"$own/stage" | awk '$1 == "160000" { print $2, substr($0, index($0, "\t") + 1) }' >"$own/modules" || return
	while IFS= read -r module; do
		commit=${module%% *} module=${module#* }
		# A name of several lines is none that can be looked into.
		case $module in *"$(printf '\001')"*) busy="$busy submodule"; break ;; esac
		[ -e "$work/$module" ] || [ -L "$work/$module" ] || continue
		# Something else in its place is a person's, and git does not tell of it.
		[ -d "$work/$module" ] && [ ! -L "$work/$module" ] || { busy="$busy submodule"; break; }
		[ -n "$(find "$work/$module" -mindepth 1 -maxdepth 1 2>&1 | head -n 1)" ] || continue
		# One level is looked into: submodules of submodules are never fetched.
		[ "$own" = "$tmp/repository" ] && (look_tree "$work/$module" "$own.module") >"$own/module" 2>/dev/null && [ "$(cat "$own/module")" = "$unworked" ] &&
			[ "$(git --git-dir="$own.module" rev-parse -q --verify HEAD)" = "$commit" ] || { busy="$busy submodule"; break; }
	done <"$own/modules"
	if [ -n "$head" ]; then # nor of one that was staged
		$git diff-index --cached --ignore-submodules=dirty HEAD >"$own/staged" || return
		! grep -q -e '^:160000 ' -e '^:[0-7]* 160000 ' "$own/staged" || busy="$busy staged-submodule"
	fi
	# What is marked as unchanged, or as not checked out, is not looked at by git.
	$git ls-files -v >"$own/flags" || return
	! grep -q '^[a-zS]' "$own/flags" || busy="$busy hidden-files"
	echo "busy=${busy# }"
	changed=$(cd "$work" && $git status --porcelain=v1 --untracked-files=all --ignore-submodules=all 2>"$own/said"); whole 'could not open directory' || return
	echo "changed=$(printf '%s' "$changed" | awk 'END { print NR }')"
	log=$($git log --format=%H ${head:+HEAD} --branches --not --remotes 2>"$own/said"); whole 'ignoring broken ref' || return
	named=$(named 2>"$own/said"); whole 'ignoring broken ref' || return
	echo "unpushed=$(printf '%s\n%s\n' "$log" "$named" | awk 'NF { n++ } END { print n + 0 }')"
	stashes=0
	if $git rev-parse -q --verify refs/stash >/dev/null 2>&1 || [ -e "$at/refs/stash" ] || [ -e "$at/logs/refs/stash" ]; then
		stashes=$($git stash list 2>/dev/null | awk 'END { print NR }') # one may have no log any more
		[ "${stashes:-0}" -gt 0 ] || stashes=1
	fi
	echo "stashes=$stashes"
}
# whole WARNING: git did what it was asked just now, and passed over nothing that it could
# not read.
whole() {
	told=$?
	cat "$own/said" >&2
	[ "$told" = 0 ] && ! grep -q "$1" "$own/said"
}
# named: commits that only tags and other such names hold, and that were made here. What
# was fetched is upstream's, also when its branch or tag is gone there: in a checkout of
# ours the name's log says so; elsewhere what is older than the checkout was not made in it.
named() {
	: >"$own/fetched"
	[ ! -d "$at/logs/refs" ] || (cd "$at/logs" && find refs -type f ! -path 'refs/heads/*' ! -path 'refs/remotes/*' -exec awk '
		{ last[FILENAME] = $0 } END { for (f in last) if (last[f] ~ /\t(fetch|pull)[ :]/) print "^" f }' {} +) >"$own/fetched" || return
	$git log --format='%ct %H' --ignore-missing --stdin --exclude='refs/heads/*' --exclude='refs/remotes/*' --exclude='refs/fuse/*' --exclude=refs/stash --all \
		--not ${head:+HEAD} --branches --remotes --glob='refs/fuse/*' <"$own/fetched" >"$own/named" || return
	born=0
	[ ! -f "$at/logs/HEAD" ] || born=$(head -n 1 "$at/logs/HEAD" | awk -F'\t' '/^0+ / { n = split($1, w, " "); print w[n - 1] }')
	awk -v born="${born:-0}" '$1 >= born + 0' "$own/named"
}
look_marker() { m=$root/playgrounds/$1/.fuse/owner.json; [ ! -f "$m" ] || head -c 4097 "$m"; }

# directory TMP PROJECT: the parts of one project, each into a file.
directory() {
	tmp=$1 apart=one parts=0
	word "$2"
	part "marker:$2" look_marker "$2"
	part "files:$2" look_files "$2"
	part "checkouts:$2" look_checkouts "$2"
	for c in $(look_checkouts "$2"); do
		[ "$c" = -others- ] || part "git:$2:$c" look_git "$2" "$c"
	done
}

# What containers can write may make a look slow: each project has so many
# seconds, and none is begun after so many of the whole look. Those that were too
# slow come last the next time, so that they take nobody else's time.
look_share=4 look_begin=14

# strays LOOK: what a look began and its limit did not end. The timeout of busybox
# ends the shell alone, and a program that opens a pipe waits for ever.
strays() {
	for e in /proc/[0-9]*/environ; do
		if grep -q "FUSE_LOOK=$1" "$e" 2>/dev/null; then e=${e#/proc/}; kill -9 "${e%/environ}" 2>/dev/null; fi
	done
}
projects() {
	slow=$root/installations/$inst.slow order=$tmp/projects
	: >"$tmp/slow" && mkdir "$tmp/project" || return
	if [ -s "$slow" ]; then
		order=$tmp/order
		{ grep -vxF -f "$slow" "$tmp/projects"; grep -xF -f "$slow" "$tmp/projects"; } >"$order"
	fi
	while read -r p; do
		late=1
		[ $(($(ticks) - tick)) -ge "$look_begin" ] ||
			FUSE_LOOK=$nonce timeout -k 1 "$look_share" sh "$0" directory "$root" "$inst" "$tmp/project" "$p" </dev/null >/dev/null 2>&1 && late=0
		[ "$late" = 0 ] || { echo "$p" >>"$tmp/slow"; strays "$nonce"; }
		for f in "$tmp/project"/*.part; do
			[ -f "$f" ] || continue
			cat "$f" >>"$tmp/body"
			parts=$((parts + 1))
		done
		rm -rf "$tmp/project"/*
	done <"$order"
	{ [ ! -s "$tmp/slow" ] && [ ! -e "$slow" ]; } || cmp -s "$tmp/slow" "$slow" || { cp "$tmp/slow" "$slow.new" && mv "$slow.new" "$slow"; } 2>/dev/null
}

observe() {
	nonce=$1
	word "$nonce"
	scratch
	from=$(date +%s) tick=$(ticks)
	frame_begin
	part host look_host
	part daemon look_daemon
	part compose look_compose
	part containers look_containers
	part foreign look_foreign
	part volumes look_volumes
	part ops look_ops
	dirs | grep "$ours" >"$tmp/projects"
	part projects cat "$tmp/projects"
	projects
	frame_end
}

[ $# -ge 3 ] || die 64 "what is to be done?"
verb=$1 root=$2 inst=$3
shift 3
case $root in /*) ;; *) die 64 "the root is no absolute path" ;; esac
case $root in *[!A-Za-z0-9._/-]* | */../* | */..) die 64 "the root has characters that are not allowed" ;; esac
word "$inst"
ops=$root/ops/$inst fences=$root/fence/$inst streams=$root/streams/$inst
case $verb in
observe | directory | start | run | watch | poll | cancel | reap | enroll | claim | keep | hangup | logs | execute | remote | branches | tree | blobs | inventory) "$verb" "$@" ;;
*) die 64 "no such verb" ;;
esac
