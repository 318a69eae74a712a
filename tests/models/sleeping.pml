/* Falling asleep and waking: a group that has read everything sets its ready_at to null, and the next push sets it
   again. Whatever overlaps, a group must not sleep while there is something to read.

   One partition, one group. A push is a transaction: it locks the head, gets an offset, wakes the group if it sees it
   asleep, and commits, which makes all of it visible and frees the head. Who has read everything up sets the group
   asleep in a transaction of its own.

   BROKEN: the group falls asleep without the lock of the head. */

#define PUSHES 3

byte last = 0;         /* the last offset that is committed */
byte position = 0;     /* up to which the group has read */
bool awake = true;     /* ready_at is not null, committed */
bool head = false;     /* whether somebody holds the lock of the head */
bool row = false;      /* whether somebody holds the row of the group */
byte pushed = 0;

active [PUSHES] proctype push() {
    bool woke = false;
    /* lock_targets */
    atomic { !head -> head = true }
    /* the trigger of messages: it sees what is committed now, and waits for the row only if it wakes it */
    if
    :: !awake -> atomic { !row -> row = true }; woke = true
    :: awake -> skip
    fi;
    /* commit */
    atomic {
        last = last + 1;
        if :: woke -> awake = true; row = false :: else -> skip fi;
        head = false;
        pushed = pushed + 1
    }
}

active proctype consumer() {
    bool nothing;
    do
    /* a pop finds only a group that is awake; it reads what is committed */
    :: atomic { awake && position < last -> position = last }
    /* settle: nothing more to read */
    :: awake && position == last ->
        atomic { !row -> row = true };
#ifndef BROKEN
        /* SKIP LOCKED: a push that holds the head keeps the group awake */
        if
        :: atomic { !head -> head = true };
            nothing = (position == last);
            atomic {
                if :: nothing -> awake = false :: else -> skip fi;
                head = false; row = false
            }
        :: atomic { head -> row = false }
        fi
#else
        nothing = (position == last);
        atomic {
            if :: nothing -> awake = false :: else -> skip fi;
            row = false
        }
#endif
    :: atomic { pushed == PUSHES && !awake && !head -> break }
    od
}

active proctype judge() {
    /* Nothing more can happen: all pushes are there, and the group has read them, or could. */
    timeout -> assert(pushed == PUSHES && (awake || position == last))
}
