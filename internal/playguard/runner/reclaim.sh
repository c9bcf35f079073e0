# A destroy that gives way to work. It comes before runner.sh in one script.

# do_reclaim VOLUME...: destroy, unless a checkout holds work that is nowhere
# else: then everything stays, and it ends with 76. Containers write there, so
# they are stopped before it is looked at for the last time.
do_reclaim() {
	# shellcheck disable=SC2154 # of the rest
	spotless "$root" || { held=$?; say "a checkout holds work that is nowhere else"; return "$held"; }
	# shellcheck disable=SC2154 # of the rest
	running=$(asked ps -q --no-trunc --filter "label=$I=$inst" --filter "label=fuse.playguard.playground=$playground") || return 69
	# shellcheck disable=SC2086,SC2154 # ids have no spaces
	[ -z "$running" ] || timeout -k 10 "$seconds" docker stop $running >/dev/null || return
	spotless "$root"
	held=$?
	if [ "$held" != 0 ]; then
		# shellcheck disable=SC2086 # ids have no spaces
		[ -z "$running" ] || timeout -k 10 "$seconds" docker start $running >/dev/null || say "not all of it could be started again"
		say "work appeared in a checkout"
		return "$held"
	fi
	# From here on nothing in the checkouts is work. One that is half gone would look
	# like it, to every later reclaim.
	# shellcheck disable=SC2154 # of the rest
	[ ! -d "$dir/props" ] || mv -T "$dir/props" "$dir/.gone-$op" || return 73
	do_destroy "$@"
}
