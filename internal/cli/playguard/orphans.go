package playguard

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
)

// sweep is "fuse marquee sweep" with its verbs.
func (a marquees) sweep() *cobra.Command {
	var arm, disarm bool
	var how gen.SweepAction
	var length time.Duration
	cmd := a.verb("sweep MARQUEE", "Arm or disarm the sweep of what is on a marquee and in no record", cobra.ExactArgs(1),
		func(cmd *cobra.Command, p client.Playguard, args []string) error {
			switch {
			case arm == disarm:
				return a.Usage("give one of --arm and --disarm; 'fuse marquee sweep status %s' shows what there is", args[0])
			case disarm:
				s, err := p.ChangeSweep(cmd.Context(), args[0], "disarm", gen.SweepAction{})
				return a.showSweep(s, err)
			case how.Why == "":
				return a.Usage("say with --why what is to be swept: it is kept with the arming")
			}
			how.For = length.String()
			s, err := p.ChangeSweep(cmd.Context(), args[0], "arm", how)
			return a.showSweep(s, err)
		})
	cmd.Long = "The sweep finds playgrounds that are provably of this installation and that no record\n" +
		"knows of. Unless it is armed it only reports them. Armed, it takes such an orphan out\n" +
		"of use when two looks an hour apart have shown it: its containers go, its directory is\n" +
		"set aside for 24 hours, its volumes stay. More than 3 orphans at once, or more than a\n" +
		"fifth of a host, are an alarm and nothing is swept."
	cmd.Flags().BoolVar(&arm, "arm", false, "let orphans be set aside")
	cmd.Flags().BoolVar(&disarm, "disarm", false, "only report them")
	cmd.Flags().DurationVar(&length, "for", 7*24*time.Hour, "how long it is armed, at most 720h")
	cmd.Flags().StringVar(&how.Why, "why", "", "what is to be swept, for those who wonder later")
	cmd.Flags().IntVar(&how.Share, "max-share", 0, "`percent` of the host's projects that may be orphans (default 20)")
	cmd.AddCommand(a.sweepStatus(), a.sweepRestore())
	return cmd
}

func (a marquees) sweepStatus() *cobra.Command {
	return a.verb("status MARQUEE", "Show what is on a marquee and in no record, and what was set aside", cobra.ExactArgs(1),
		func(cmd *cobra.Command, p client.Playguard, args []string) error {
			s, err := p.Sweep(cmd.Context(), args[0])
			return a.showSweep(s, err)
		})
}

func (a marquees) showSweep(s gen.MarqueeSweep, err error) error {
	if err != nil {
		return err
	}
	return a.show(s, s.Marquee, func() error {
		state := "reports only"
		if s.Armed {
			state = fmt.Sprintf("armed by %s until %s, up to %d %% of the host: %s", s.ArmedBy, s.ArmedUntil.Local().Format(time.RFC3339), s.Share, s.Why)
		}
		fields := [][2]string{{"marquee", s.Name}, {"sweep", state}}
		if s.Halted != "" {
			fields = append(fields, [2]string{"halted", s.Halted + "; adopt what is listed, then arm it again"})
		}
		if s.HaltedElsewhere != "" {
			fields = append(fields, [2]string{"halted", "by marquee " + s.HaltedElsewhere})
		}
		fields = append(fields, [2]string{"alarm", s.Alarm}, [2]string{"working on", s.WorkingOn})
		if s.LookedAt.IsZero() {
			fields = append(fields, [2]string{"orphans", "this server has not looked yet"})
		} else {
			fields = append(fields, [2]string{"looked", a.since(s.LookedAt)})
		}
		for _, f := range s.Findings {
			text := f.Project + ": " + or(f.Guard, "is being set aside")
			if f.Why != "" {
				text += " (" + f.Why + ")"
			}
			if f.Adoptable {
				text += "; take it back with 'fuse playground adopt " + s.Name + " " + f.Project + "'"
			}
			fields = append(fields, [2]string{"orphan", text})
		}
		for _, x := range s.Aside {
			text := x.Project + ": kept until " + x.Until.Local().Format(time.RFC3339)
			if len(x.Volumes) > 0 {
				text += "; its volumes stay: " + strings.Join(x.Volumes, ", ")
			}
			if x.Trouble != "" {
				text += "; " + x.Trouble
			}
			fields = append(fields, [2]string{"set aside", text + "; bring it back with 'fuse marquee sweep restore " + x.Project + "'"})
		}
		return a.Sheet(a.Out, fields)
	})
}

func (a marquees) sweepRestore() *cobra.Command {
	cmd := a.verb("restore PROJECT", "Bring back what the sweep set aside", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		marquee, err := a.whereAside(cmd, p, args[0])
		if err != nil {
			return err
		}
		g, err := p.Restore(cmd.Context(), marquee, args[0])
		return a.showPlayground(g, err)
	})
	cmd.Long = "restore puts its directory back, gives it a record, and starts it if it ran. Its\nvolumes were never gone."
	return cmd
}

// whereAside finds the marquee that has a project set aside.
func (a marquees) whereAside(cmd *cobra.Command, p client.Playguard, project string) (string, error) {
	params := gen.ListMarqueesParams{Limit: new(200)}
	for {
		page, err := p.Marquees(cmd.Context(), params)
		if err != nil {
			return "", err
		}
		for _, m := range page.Marquees {
			s, err := p.Sweep(cmd.Context(), m.ID)
			if err != nil {
				return "", err
			}
			for _, x := range s.Aside {
				if x.Project == project {
					return m.ID, nil
				}
			}
		}
		if page.NextCursor == "" {
			return "", fmt.Errorf("no marquee has %s set aside", project)
		}
		params.Cursor = &page.NextCursor
	}
}

func (a marquees) rescan() *cobra.Command {
	var req gen.RescanMarquee
	var yes bool
	cmd := a.verb("rescan MARQUEE", "List all playgrounds on a marquee, and take back those without a record", cobra.ExactArgs(1),
		func(cmd *cobra.Command, p client.Playguard, args []string) error {
			r, err := p.Rescan(cmd.Context(), args[0], req)
			other := leftBehind(r)
			if err != nil || !req.AdoptAll || req.TakeOverInstallation != "" || other == "" || !yes && !a.IsTerminal(a.In) {
				return a.showRescan(r, err, req.AdoptAll)
			}
			if !yes {
				if err := a.ask("Nothing there is of this server. All playgrounds are of installation "+other+": take them over? Do so only if its server is gone for good.", "--yes"); err != nil {
					return err
				}
			}
			req.TakeOverInstallation = other
			r, err = p.Rescan(cmd.Context(), args[0], req)
			return a.showRescan(r, err, true)
		})
	cmd.Long = "rescan reads what lies on the host and touches nothing there. After the server's records\n" +
		"were lost, register the host anew and take its playgrounds back with --adopt-all. If nothing\n" +
		"there is of this server and all is of one other installation, it asks whether to take that one\n" +
		"over; --yes says so without a question, and --take-over-installation which of several. Do that\n" +
		"only for one that is not at work any more: two servers must not look after the same playgrounds."
	rescanFlags(cmd, &req)
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "take over the one other installation there without asking")
	return cmd
}

// leftBehind is the one other installation that has playgrounds on a host where
// this one has none; empty if there is not exactly one.
func leftBehind(r gen.MarqueeRescan) (other string) {
	if len(r.Projects) > 0 || len(r.Aside) > 0 {
		return ""
	}
	for _, i := range r.Installations {
		switch {
		case i == r.Installation:
		case other != "":
			return ""
		default:
			other = i
		}
	}
	return other
}

func rescanFlags(cmd *cobra.Command, req *gen.RescanMarquee) {
	cmd.Flags().BoolVar(&req.AdoptAll, "adopt-all", false, "take back all playgrounds there that have no record")
	cmd.Flags().StringVar(&req.TakeOverInstallation, "take-over-installation", "", "the `id` of the installation whose records were lost")
}

// tellNeeds says what people have to give again, for it was in the records alone.
func (a marquees) tellNeeds(r gen.MarqueeRescan) {
	adopted := false
	for _, f := range r.Projects {
		adopted = adopted || f.Adopted
		if len(f.Needs) > 0 {
			fmt.Fprintf(a.Err, "%s of %s needs again: %s\n", a.Cell(or(f.Name, f.Project)), a.Cell(or(f.Owner, "-")), a.Cell(strings.Join(f.Needs, "; ")))
		}
	}
	if adopted {
		fmt.Fprintln(a.Err, "What is adopted uses no secret of its owner before the owner brings it up, or follows its branch, again. Secrets, logins, templates,")
		fmt.Fprintln(a.Err, "previews, schedules, git hooks and notification routes are on no host: give them again if the records were lost.")
	}
}

func (a marquees) showRescan(r gen.MarqueeRescan, err error, adopt bool) error {
	if err != nil {
		return err
	}
	var rows [][]string
	failed, left := 0, 0
	for _, f := range r.Projects {
		what := "no record"
		switch {
		case f.Adopted:
			what = "adopted"
		case f.Recorded:
			what = "recorded"
		case f.Trouble != "":
			what = f.Trouble
			failed++
		default:
			left++
		}
		rows = append(rows, []string{f.Project, or(f.Name, "-"), or(f.Owner, "-"), strconv.Itoa(f.Running) + "/" + strconv.Itoa(f.Containers), or(f.Last, "-"), what})
	}
	if err := a.PrintList(r, []string{"PROJECT", "NAME", "OWNER", "RUNNING", "LAST", "RECORD"}, rows); err != nil {
		return err
	}
	if format, _ := a.Format(); format == "json" || format == "name" {
		return nil
	}
	for _, other := range r.Installations {
		if other != r.Installation {
			fmt.Fprintf(a.Err, "installation %s has playgrounds on this host too; if its records are lost: fuse marquee rescan %s --adopt-all --take-over-installation %s\n",
				a.Cell(other), a.Cell(r.Name), a.Cell(other))
		}
	}
	unrecorded := "" // what lies there may have no record
	if !adopt {
		unrecorded = ", after a rescan with --adopt-all if the records were lost"
	}
	for _, p := range r.Aside {
		fmt.Fprintf(a.Err, "%s was set aside by a sweep and lies below swept/%s; fuse marquee sweep restore %s brings it back%s\n", a.Cell(p), a.Cell(r.Installation), a.Cell(p), unrecorded)
	}
	a.tellNeeds(r)
	switch {
	case adopt && failed > 0:
		return a.Exit(1, errors.New(strconv.Itoa(failed)+" could not be taken back"))
	case left > 0:
		fmt.Fprintf(a.Err, "%d have no record: fuse marquee rescan %s --adopt-all takes them back\n", left, a.Cell(r.Name))
	}
	return nil
}
