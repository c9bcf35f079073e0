package playguard

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
)

// marquees are the verbs of marquees.
type marquees struct{ *app }

func (a marquees) listMarquees() *cobra.Command {
	cmd := a.verb("ls", "List marquees", cobra.NoArgs, func(cmd *cobra.Command, p client.Playguard, _ []string) error {
		var all gen.MarqueeList
		params := gen.ListMarqueesParams{Limit: new(200)}
		for {
			page, err := p.Marquees(cmd.Context(), params)
			if err != nil {
				return err
			}
			all.Marquees = append(all.Marquees, page.Marquees...)
			if page.NextCursor == "" {
				break
			}
			params.Cursor = &page.NextCursor
		}
		if all.Marquees == nil {
			all.Marquees = []gen.Marquee{}
		}
		var rows [][]string
		for _, m := range all.Marquees {
			rows = append(rows, []string{m.Name, m.ID, or(m.Address, "-"), marqueeState(m), strconv.Itoa(m.Playgrounds), a.since(m.LastLook.At), or(m.Trouble, "-")})
		}
		return a.PrintList(all, []string{"NAME", "ID", "ADDRESS", "STATE", "PLAYGROUNDS", "LOOKED", "TROUBLE"}, rows)
	})
	cmd.Aliases = []string{"list"}
	return cmd
}

// marqueeState is both axes in one word.
func marqueeState(m gen.Marquee) string {
	switch {
	case m.Admin == "disabled":
		return "disabled"
	case m.Reach == "quarantined":
		return "quarantined"
	case m.Misses > 0:
		return "unseen"
	}
	return "ok"
}

func (a marquees) getMarquee() *cobra.Command {
	return a.verb("get MARQUEE", "Show a marquee", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		m, err := p.Marquee(cmd.Context(), args[0])
		return a.showMarquee(m, err)
	})
}

func (a marquees) showMarquee(m gen.Marquee, err error) error {
	if err != nil {
		return err
	}
	return a.show(m, m.ID, func() error {
		login := m.User + "@" + m.Address
		for _, j := range m.Jumps {
			login += ", through " + j.Address
		}
		fields := [][2]string{
			{"name", m.Name}, {"id", m.ID}, {"state", marqueeState(m)}, {"why", m.AdminWhy}, {"trouble", m.Trouble}, {"login", strings.TrimPrefix(login, "@")},
			{"host key", m.Fingerprint}, {"agent", m.Agent}, {"root", m.Root}, {"policy", policyText(m.Policy)}, {"new ones end", limitText(m.DefaultExpirySeconds)}, {"carries", strconv.Itoa(m.Playgrounds) + " playgrounds"},
		}
		if l := m.LastLook; l.Verdict != "" {
			fields = append(fields, a.lookFields(l)...)
		}
		if !m.NextLook.IsZero() {
			fields = append(fields, [2]string{"next look", m.NextLook.Local().Format("15:04:05")})
		}
		if i := m.Identity; i.DaemonID != "" {
			fields = append(fields, [2]string{"identity", "machine " + i.MachineID + ", daemon " + i.DaemonID + ", data " + i.DataRoot})
		}
		for _, o := range m.Orphans {
			fields = append(fields, [2]string{"orphan", o.Project + ": " + o.Why + "; take it back with 'fuse playground adopt " + m.Name + " " + o.Project + "'"})
		}
		return a.Sheet(a.Out, fields)
	})
}

func (a *app) lookFields(l gen.MarqueeLook) [][2]string {
	text := l.Verdict + ", " + a.since(l.At)
	if l.Reason != "" {
		text += ": " + l.Reason
	}
	if l.Detail != "" {
		text += " (" + l.Detail + ")"
	}
	fields := [][2]string{{"last look", text}, {"to do", l.Remedy}}
	if l.Docker != "" {
		fields = append(fields, [2]string{"docker", fmt.Sprintf("%s, compose %s, storage %s, %.1f GiB free", l.Docker, l.Compose, l.Storage, float64(l.DiskFree)/(1<<30))})
	}
	return fields
}

func (a marquees) check() *cobra.Command {
	cmd := a.verb("check MARQUEE", "Look at a marquee now and say what works", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		c, err := p.CheckMarquee(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if err := a.show(c, "", func() error { return a.printCheck(c) }); err != nil || c.OK {
			return err
		}
		return a.Exit(1, nil)
	})
	cmd.Long = "check reaches the host, logs in and asks for what playgrounds need there. A clean\nlook also returns a marquee that was quarantined after five looks saw nothing.\nThe exit code is 1 if something does not work."
	return cmd
}

func (a marquees) printCheck(c gen.MarqueeCheck) error {
	for _, p := range c.Points {
		sign := "ok  "
		switch {
		case !p.Asked:
			sign = "-   "
		case !p.OK:
			sign = "FAIL"
		}
		fmt.Fprintf(a.Out, "%s  %-9s %s\n", sign, a.Cell(p.Name), a.Cell(p.Text))
		if p.Remedy != "" && !p.OK {
			fmt.Fprintf(a.Out, "      %-9s %s\n", "", a.Cell(p.Remedy))
		}
	}
	return nil
}

func (a marquees) quarantine() *cobra.Command {
	var why string
	cmd := a.verb("quarantine MARQUEE", "Take a marquee out of use until it is returned; nothing on it is touched", cobra.ExactArgs(1),
		func(cmd *cobra.Command, p client.Playguard, args []string) error {
			m, err := p.ChangeMarquee(cmd.Context(), args[0], "quarantine", gen.MarqueeAction{Why: why})
			return a.showMarquee(m, err)
		})
	cmd.Flags().StringVar(&why, "why", "", "for those who wonder later")
	return cmd
}

func (a marquees) takeBack() *cobra.Command {
	var hostKey string
	var identity bool
	cmd := a.verb("return MARQUEE", "Take a marquee back into use", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		body := gen.MarqueeAction{AcceptIdentity: identity, HostKey: hostKey}
		m, err := p.ChangeMarquee(cmd.Context(), args[0], "return", body)
		return a.showMarquee(m, err)
	})
	cmd.Long = "return takes a marquee back that a person or the loop quarantined. A host key that\n" +
		"changed is never accepted by itself: find out why it changed, then give the new one."
	cmd.Flags().StringVar(&hostKey, "host-key", "", "the new host key, one `line` such as 'ssh-ed25519 AAAA…'")
	cmd.Flags().BoolVar(&identity, "accept-identity", false, "the machine or its Docker was reinstalled on purpose")
	return cmd
}

func (a marquees) policy() *cobra.Command {
	var words []string
	cmd := a.verb("policy MARQUEE", "Change what compose files may do on a marquee, from the next up on", cobra.ExactArgs(1),
		func(cmd *cobra.Command, p client.Playguard, args []string) error {
			policy, err := a.parsePolicy(words)
			if err != nil {
				return err
			}
			if policy == nil {
				return a.Usage("nothing to change: give --policy")
			}
			m, err := p.ChangeMarquee(cmd.Context(), args[0], "policy", gen.MarqueeAction{Policy: policy})
			return a.showMarquee(m, err)
		})
	policyFlag(cmd, &words)
	return cmd
}

func (a marquees) removeMarquee() *cobra.Command {
	var forget, yes bool
	cmd := a.verb("rm MARQUEE", "Forget a marquee; nothing on it is touched", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		if forget && !yes {
			if err := a.ask("Drop the records of the playgrounds on "+args[0]+" too? They go on running and nobody looks after them.", "--yes"); err != nil {
				return err
			}
		}
		return p.RemoveMarquee(cmd.Context(), args[0], forget)
	})
	cmd.Aliases = []string{"delete"}
	cmd.Flags().BoolVar(&forget, "forget", false, "also drop the records of the playgrounds on it")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return cmd
}
