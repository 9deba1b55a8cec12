"""The pages: attention by topic in one text, and everything that was saved in a folder."""

from topic_probe.show.attention_page import attention_page as attention_page
from topic_probe.show.attention_page import show_attention as show_attention
from topic_probe.show.page import Page as Page
from topic_probe.show.report_page import report_page as report_page
from topic_probe.show.text_attention import TextAttention as TextAttention
from topic_probe.show.text_attention import read_text_attention as read_text_attention
