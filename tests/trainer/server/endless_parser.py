"""A parser's process for tests: answers with its pid, or never, or ends."""

import os
import pickle
import time

from rljob_trainer.rewards.worker import channel, die_with_parent, say

die_with_parent()
questions, answers = channel()
say(answers, takes=(), concurrent=False)
while True:
    number, body = pickle.load(questions)
    match body["text"]:
        case "endless":
            time.sleep(10_000)
        case "deadly":
            os._exit(1)
    say(answers, number=number, pid=os.getpid())
