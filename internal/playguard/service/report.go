package service

import (
	"strings"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// remedies are what a person can do about each reason.
var remedies = map[observe.Reason]string{
	observe.ReasonDial:       "see that the host is up and that its SSH port is open to this server",
	observe.ReasonHostKey:    "find out why the host shows another key; if that is right, return the marquee with the new one",
	observe.ReasonAuth:       "put the public half of the key into ~/.ssh/authorized_keys of that user, and see that the account is not locked",
	observe.ReasonHandshake:  "see that an OpenSSH server of the last years listens there",
	observe.ReasonSession:    "raise MaxSessions in sshd_config to 10 or more, or end other connections",
	observe.ReasonCut:        "try again; if it stays, look at the network between the two",
	observe.ReasonTimeout:    "see whether the Docker daemon answers (docker ps on the host), how loaded the host is, and how long the user's shell takes to start (time ssh USER@HOST true): ~/.bashrc is read at each look",
	observe.ReasonTooling:    "install Docker with its Compose plugin or docker-compose, git, and the usual tools (flock, setsid, timeout, tar, sha256sum)",
	observe.ReasonPermission: "let the user reach the Docker socket (usermod -aG docker USER) and write below the root directory",
	observe.ReasonDaemon:     "start the Docker daemon (systemctl start docker)",
	observe.ReasonIdentity:   "find out whether this is the right machine and the right Docker data; if it is, return the marquee and accept what it is now",
	observe.ReasonParse:      "log in by hand and see that nothing but a shell answers; a forced command or a restricted shell cannot be used",
	observe.ReasonTooLarge:   "remove what is not needed any more: the host's lists are larger than is taken",
}

func remedy(r observe.Reason) string { return remedies[r] }

// report tells of a look.
func report(s loop.Sight) LookReport {
	r := LookReport{At: s.At, Took: s.Took, Verdict: s.Look.Verdict().String(), Reason: string(s.Look.Reason()), Detail: s.Look.Detail(), Remedy: remedy(s.Look.Reason())}
	if s.Skipped {
		r.Reason, r.Detail = "quarantined", "a person took the marquee out of the loop"
		return r
	}
	host, seen := s.Look.Host()
	if !seen {
		return r
	}
	r.Docker, r.Storage, r.DiskFree, r.HostEpoch, r.OddDirs = host.Docker, host.Storage, host.DiskFree, host.Epoch, host.OddDirs
	r.Compose = strings.TrimSpace(host.Compose.Flavour + " " + host.Compose.Version)
	projects, _ := s.Look.Projects()
	r.Projects = len(projects)
	for _, name := range projects {
		p := s.Look.Project(name)
		containers, _ := p.Containers()
		volumes, _ := p.Volumes()
		r.Containers += len(containers)
		r.Volumes += len(volumes)
	}
	return r
}

// orphans lists what a look found to be ours without a record.
func orphans(s loop.Sight) (out []Orphan) {
	for _, step := range s.Orphans {
		if found, ok := step.Act.(decide.Report); ok {
			out = append(out, Orphan{Project: found.Project, Why: step.Why})
		}
	}
	return out
}

// points are what a check asks, in order, and by which reasons each fails.
var points = []struct {
	name    string
	reasons []observe.Reason
}{
	{"connect", []observe.Reason{observe.ReasonDial, observe.ReasonHandshake, observe.ReasonCut, observe.ReasonSession}},
	{"host key", []observe.Reason{observe.ReasonHostKey}},
	{"login", []observe.Reason{observe.ReasonAuth}},
	{"runner", []observe.Reason{observe.ReasonParse, observe.ReasonTooLarge}},
	{"docker", []observe.Reason{observe.ReasonDaemon, observe.ReasonPermission, observe.ReasonTimeout}},
	{"compose", []observe.Reason{observe.ReasonTooling}},
	{"identity", []observe.Reason{observe.ReasonIdentity}},
}

func checkOf(s loop.Sight) Check {
	c := Check{OK: s.Look.Verdict() == observe.Seen, Look: report(s)}
	failed := -1
	for i, p := range points {
		for _, r := range p.reasons {
			if r == s.Look.Reason() && !c.OK {
				failed = i
			}
		}
	}
	if s.Look.Reason() == observe.ReasonTimeout && !strings.Contains(s.Look.Detail(), "exit status") {
		failed = 0 // nothing came back at all
	}
	for i, p := range points {
		point := CheckPoint{Name: p.name, OK: c.OK || i < failed, Asked: c.OK || i <= failed}
		if i == failed {
			point.Text, point.Remedy = c.Look.Detail, c.Look.Remedy
		}
		c.Points = append(c.Points, point)
	}
	return c
}
