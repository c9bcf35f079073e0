package observe

import (
	"regexp"
	"strings"
)

// Verdict is how much was seen. The zero Verdict is Unseen.
type Verdict uint8

// Verdicts.
const (
	Unseen Verdict = iota
	Partial
	Seen
)

func (v Verdict) String() string { return [...]string{"unseen", "partial", "seen"}[v] }

// Reason says why something was not seen. The list is closed.
type Reason string

// Reasons; ReasonNone goes with Seen only.
const (
	ReasonNone       Reason = ""
	ReasonDial       Reason = "dial"
	ReasonHostKey    Reason = "host key"
	ReasonAuth       Reason = "auth"
	ReasonHandshake  Reason = "handshake"
	ReasonSession    Reason = "session"
	ReasonCut        Reason = "transport cut"
	ReasonTimeout    Reason = "timeout"
	ReasonTooling    Reason = "tooling"
	ReasonPermission Reason = "permission"
	ReasonDaemon     Reason = "daemon"
	ReasonIdentity   Reason = "identity"
	ReasonParse      Reason = "parse"
	ReasonTooLarge   Reason = "too large"
)

// Reasons lists all of them but ReasonNone.
func Reasons() []Reason {
	return []Reason{
		ReasonDial, ReasonHostKey, ReasonAuth, ReasonHandshake, ReasonSession, ReasonCut, ReasonTimeout,
		ReasonTooling, ReasonPermission, ReasonDaemon, ReasonIdentity, ReasonParse, ReasonTooLarge,
	}
}

// NeedsPerson reports whether the reason seldom heals by itself, so that it is
// an alarm of its own and not only a miss.
func (r Reason) NeedsPerson() bool {
	switch r {
	case ReasonHostKey, ReasonAuth, ReasonIdentity, ReasonPermission, ReasonTooling:
		return true
	}
	return false
}

// Ending is how a round trip ended, as the SSH layer's typed errors tell it.
type Ending string

// Endings.
const (
	EndedExit       Ending = "exit"            // with Trip.Status
	EndedSignal     Ending = "signal"          // Trip.Status is 128 plus its number
	EndedWithout    Ending = "no exit status"  // link cut, or sshd's child killed
	EndedDial       Ending = "dial error"      // port closed, name unknown
	EndedHostKey    Ending = "host key"        // unknown or changed
	EndedAuth       Ending = "authentication"  // no key was taken
	EndedHandshake  Ending = "handshake"       // any other handshake error
	EndedSession    Ending = "session refused" // no session on a live connection
	EndedDeadline   Ending = "deadline"        // ours passed
	EndedOutputOver Ending = "output over"     // more output than MaxAnswer
)

// trouble names the reason of an ending that left no complete frame.
func trouble(end Ending, status int, stderr string) Reason {
	switch end {
	case EndedDial:
		return ReasonDial
	case EndedHostKey:
		return ReasonHostKey
	case EndedAuth:
		return ReasonAuth
	case EndedHandshake:
		return ReasonHandshake
	case EndedSession:
		return ReasonSession
	case EndedDeadline:
		return ReasonTimeout
	case EndedOutputOver:
		return ReasonTooLarge
	case EndedExit, EndedSignal:
		return commandTrouble(status, stderr, ReasonParse)
	}
	return ReasonCut
}

var (
	noRight       = regexp.MustCompile(`(?i)permission denied while trying to connect|dial unix .*permission denied`)
	noDaemon      = regexp.MustCompile(`(?i)cannot connect to the docker daemon|is the docker daemon running`)
	wrongTool     = regexp.MustCompile(`(?i)client version .* is too (new|old)|api version|is not a docker command|unknown (command|flag|shorthand flag)|command not found|template parsing error`)
	goneMeanwhile = regexp.MustCompile(`(?i)no such (object|container|volume)`)
)

// commandTrouble names why a command on the host failed: what its exit status
// says, else its text, else the given reason.
func commandTrouble(status int, stderr string, otherwise Reason) Reason {
	switch status {
	case 124, 137:
		return ReasonTimeout
	case 126, 127:
		return ReasonTooling
	}
	switch {
	case noRight.MatchString(stderr):
		return ReasonPermission
	case noDaemon.MatchString(stderr):
		return ReasonDaemon
	case wrongTool.MatchString(stderr):
		return ReasonTooling
	}
	return otherwise
}

func firstLine(b []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	if len(line) > 200 {
		line = line[:200] + "…"
	}
	return strings.ToValidUTF8(line, "?")
}
